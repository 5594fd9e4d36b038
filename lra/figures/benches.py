"""The pictures of `lra bench`, drawn again from the numbers in their files."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path

from lra.config import UserError
from lra.figures.draw import NO_MATPLOTLIB

# The benchmark of a file's head, and the module of lra.bench that draws it.
DRAWN = {
    "attention": "figure",
    "convert": "convert_figure",
    "luna": "luna_figure",
    "compute": "scatter",
}


def redraw(files: Sequence[Path], out: Path | None = None) -> list[Path]:
    """PNG and SVG of each file, beside it or in `out`."""
    return [path for file in files for path in _redraw(file, out or file.parent)]


def _redraw(file: Path, out: Path) -> list[Path]:
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
        benchmark = facts["benchmark"].split()[2]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{file} is no file of numbers that `lra bench` wrote (.json)") from error
    if benchmark not in DRAWN:
        told = ", ".join(DRAWN)
        raise UserError(f"{file} is of `lra bench {benchmark}`, which has no picture; {told} have")
    try:
        drawing = importlib.import_module(f"lra.bench.{DRAWN[benchmark]}")
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise UserError(NO_MATPLOTLIB) from error
    return drawing.draw(facts["rows"], facts, out / file.stem)
