"""The command line of `lra bench`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lra.bench.result import BenchResult

LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]
GEOMETRIES = ("minilm", "bert-base", "gpt2")
# What every benchmark measures, and the defaults of its options.
BENCHMARKS: dict[str, tuple[str, dict[str, Any]]] = {
    "attention": (
        "time and memory of every attention alone, by length",
        {"methods": [], "lengths": LENGTHS, "batch": 1},
    ),
    "luna": (
        "LUNA's evaluations, linear attention and fused softmax, by length",
        {"lengths": [1024, 4096], "batch": 8},
    ),
    "convert": (
        "a converted model and its softmax original, by length",
        {"methods": ["luna", "hedgehog", "t2r"], "lengths": [128, 256, *LENGTHS[:-1]], "batch": 1},
    ),
    "roof": (
        "linear attention and LUNA beside what the processor can do",
        {"lengths": [1024, 2048, 8192], "batch": 4},
    ),
    "train": (
        "a training step of a run's settings, and how close it is to what the device can do",
        {"methods": []},
    ),
}


def add_arguments(
    bench: argparse.ArgumentParser, draw: Callable[[BenchResult, Path], list[Path]]
) -> None:
    kinds = bench.add_subparsers(dest="what", required=True, metavar="|".join([*BENCHMARKS, "gpu"]))
    for name, (about, defaults) in BENCHMARKS.items():
        shown = argparse.ArgumentDefaultsHelpFormatter
        add = (parser := kinds.add_parser(name, help=about, formatter_class=shown)).add_argument
        if name == "train":
            add("overrides", nargs="*", help="as for lra train: task=listops model=small")
        else:
            add("--lengths", nargs="+", type=int, help="in tokens")
            add("--batch", type=int, help="examples per batch")
            add("--threads", type=int, default=1, help="of torch, on a CPU")
            add("--device", default="cpu", help="cpu or cuda")
        if "methods" in defaults:
            add("--methods", nargs="+", help="NAME or NAME@PROFILE; without: all, or the run's")
        if name == "attention":
            add("--causal", action="store_true", help="in causal form, and one more token behind n")
        if name == "convert":
            add("--geometry", choices=GEOMETRIES, default="minilm", help="gpt2 generates too")
        add("--rounds", type=int, default=5, help="over all cases")
        add(
            "--write",
            type=Path,
            nargs="?",
            const=Path("results/bench"),
            help="numbers, page, figure; a folder",
        )
        parser.set_defaults(**defaults, run=lambda options: _run(options, draw))
    _add_gpu(kinds.add_parser)


def _add_gpu(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    about = "LUNA, linear, lion, fused softmax and other libraries' kernels on a GPU"
    parser = add_parser("gpu", help=about)
    parser.add_argument(
        "--lengths", nargs="+", type=int, default=[2048, 16384], help="in tokens (2048 16384)"
    )
    parser.add_argument("--write", type=Path, help="folder of gpu.jsonl and gpu.md")
    parser.set_defaults(run=_run_gpu)


def _run_gpu(options: argparse.Namespace) -> None:
    from lra.bench.gpu import main

    main(options)


def _run(options: argparse.Namespace, draw: Callable[[BenchResult, Path], list[Path]]) -> None:
    from lra.bench import cases, result, roof, train
    from lra.bench.measure import measure_cases

    module = {"train": train, "roof": roof}.get(options.what, cases)
    benchmark = getattr(module, f"{options.what}_benchmark")(options)
    rows = measure_cases(benchmark, options)
    about = {"title": benchmark.title, "base": benchmark.base, "notes": benchmark.notes}
    measured = result.BenchResult(facts=result.facts_of(options, **about), rows=rows)
    print(result.page(measured))
    if options.write:
        stem = options.write / result.stem_of(benchmark.stem, measured.facts)
        for path in [*measured.save(stem), *draw(measured, stem)]:
            print(f"written to {path}")
