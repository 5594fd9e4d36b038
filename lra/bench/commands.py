"""The command line of `lra bench`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lra.bench.result import BenchResult

LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]
COMMON = {"batch": 1, "threads": 1, "device": "cpu", "seconds": 10.0, "mib": 4096.0}
# What every benchmark measures, and its options with their defaults.
BENCHMARKS: dict[str, tuple[str, dict[str, Any]]] = {
    "attention": ("time and memory of every attention alone, by length",
                  {"methods": [], "lengths": LENGTHS, **COMMON, "causal": False}),
    "luna": ("LUNA's evaluations, linear attention and fused softmax, by length",
             {"lengths": [1024, 4096], **COMMON, "batch": 8}),
    "convert": ("a converted model and its softmax original, by length",
                {"methods": ["luna", "hedgehog", "t2r"], "geometry": "minilm",
                 "lengths": [128, 256, *LENGTHS[:-1]], **COMMON}),
    "train": ("a training step of a run's settings, and how close it is to what the device can do",
              {"overrides": [], "methods": []}),
}  # fmt: skip
HELP = {
    "overrides": "as for lra train: task=listops model=small",
    "methods": "attentions, NAME or NAME@PROFILE; without: all of them, or the run's",
    "causal": "in causal form, and one more token behind n",
    "geometry": "sizes of the model: minilm, bert-base; gpt2 generates too",
    "lengths": "in tokens",
    "batch": "examples per batch",
    "threads": "of torch, on a CPU",
    "device": "cpu or cuda",
    "seconds": "a method goes no further where a call takes longer",
    "mib": "or would need more memory",
    "rounds": "over all cases",
}


def add_parser(commands: Any, draw: Callable[[BenchResult, Path], list[Path]]) -> None:
    bench = commands.add_parser(
        "bench", help="measure time and memory of attentions, models or training"
    )
    kinds = bench.add_subparsers(dest="what", required=True, metavar="|".join(BENCHMARKS))
    shown = argparse.ArgumentDefaultsHelpFormatter
    for name, (about, defaults) in BENCHMARKS.items():
        parser = kinds.add_parser(name, help=about, formatter_class=shown)
        for option, default in (defaults | {"rounds": 5}).items():
            reads: dict[str, Any] = {"type": type(default)}
            if isinstance(default, list):
                reads = {"nargs": "*", "type": type(default[0]) if default else str}
            elif default is False:
                reads = {"action": "store_true"}
            flag = option if option == "overrides" else f"--{option}"
            parser.add_argument(flag, default=default, help=HELP[option], **reads)
        parser.add_argument("--write", type=Path, nargs="?", const=Path("results/bench"),
                            help="numbers, page, figure; a folder")  # fmt: skip
        parser.set_defaults(run=lambda options: _run(options, draw))


def _run(options: argparse.Namespace, draw: Callable[[BenchResult, Path], list[Path]]) -> None:
    from lra.bench import result
    from lra.bench.measure import measure_cases

    if options.what == "train":
        from lra.bench.train import train_benchmark as benchmark_of
    else:
        from lra.bench import cases

        benchmark_of = getattr(cases, f"{options.what}_benchmark")
    benchmark = benchmark_of(options)
    rows = measure_cases(benchmark, options)
    about = {"title": benchmark.title, "base": benchmark.base, "notes": benchmark.notes}
    measured = result.BenchResult(facts=result.facts_of(options, **about), rows=rows)
    print(result.page(measured))
    if options.write:
        stem = options.write / result.stem_of(benchmark.stem, measured.facts)
        for path in [*measured.save(stem), *draw(measured, stem)]:
            print(f"written to {path}")
