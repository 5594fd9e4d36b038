"""The pictures of `lra bench`, after measuring and again from the numbers in their files."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from lra.base.config import UserError
from lra.bench.rows import BenchResult
from lra.figures.draw import NO_MATPLOTLIB

DRAWN = ("attention", "causal", "convert", "luna", "compute")  # benchmarks with a picture


def draw_if_possible(result: BenchResult, stem: Path) -> list[Path]:
    """Nothing where the benchmark has no picture, or matplotlib is not installed."""
    if result.name not in DRAWN:
        return []
    if importlib.util.find_spec("matplotlib") is None:
        print(f"no picture: {NO_MATPLOTLIB}")
        return []
    return draw(result, stem)


def draw(result: BenchResult, stem: Path) -> list[Path]:
    """PNG and SVG."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError(NO_MATPLOTLIB)
    from lra.figures import bench_compute, bench_convert, bench_lengths, bench_luna

    pictures = {"attention": bench_lengths, "causal": bench_lengths, "convert": bench_convert,
                "luna": bench_luna, "compute": bench_compute}  # fmt: skip
    return pictures[result.name].draw(result, stem)


def redraw(files: Sequence[Path], out: Path | None = None) -> list[Path]:
    """PNG and SVG of each file, beside it or in `out`."""
    paths = []
    for file in files:
        result = BenchResult.load(file)
        if result.name not in DRAWN:
            raise UserError(
                f"{file} is from `lra bench {result.name}`, which has no picture: choose a file of "
                f"{', '.join(DRAWN)}"
            )
        paths += draw(result, (out or file.parent) / file.stem)
    return paths
