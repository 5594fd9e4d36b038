"""The command line of `lra bench`."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lra.bench.result import BenchResult

RESULTS = Path("results/bench")
LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]
COMMON: dict[str, Any] = {"threads": 1, "device": "cpu", "seconds": 10.0, "mib": 4096.0}
# What every benchmark measures, and its options with their defaults.
BENCHMARKS: dict[str, tuple[str, dict[str, Any]]] = {
    "attention": (
        "time and memory of every attention alone, by length",
        {"methods": [], "lengths": LENGTHS, "passes": ["forward", "train"], "causal": False,
         "batch": 1, "heads": 2, "head-dim": 32, **COMMON},
    ),
    "luna": (
        "LUNA's evaluations, linear attention and fused softmax, by length",
        {"lengths": [1024, 4096], "batch": 8, **COMMON},
    ),
    "convert": (
        "a converted model and its softmax original, by length",
        {"methods": ["luna", "hedgehog", "t2r"], "geometry": "minilm",
         "lengths": [128, 256, *LENGTHS[:-1]], "batch": 1, **COMMON},
    ),
    "train": (
        "a training step of a run's settings, and how close it is to what the device can do",
        {"overrides": [], "methods": []},
    ),
}  # fmt: skip
HELP = {
    "overrides": "as for lra train: task=listops model=small",
    "methods": "attentions, NAME or NAME@PROFILE; without: all of them, or the run's",
    "passes": "forward without gradients; train: forward and backward",
    "causal": "in causal form, and one more token behind n",
    "geometry": "sizes of the model: minilm, bert-base; gpt2 generates too",
    "lengths": "in tokens",
    "batch": "examples per batch",
    "threads": "of torch, on a CPU",
    "device": "cpu or cuda",
    "seconds": "a method goes no further where a call takes longer",
    "mib": "or needs more memory",
    "rounds": "over all cases",
}


def add_parser(commands: Any, draw: Callable[[BenchResult, Path], list[Path]]) -> None:
    bench = commands.add_parser(
        "bench", help="measure time and memory of attentions, models or training"
    )
    kinds = bench.add_subparsers(dest="what", required=True, metavar="|".join(BENCHMARKS))
    shown = argparse.ArgumentDefaultsHelpFormatter
    for name, (help, defaults) in BENCHMARKS.items():
        parser = kinds.add_parser(name, help=help, formatter_class=shown)
        for option, default in (defaults | {"rounds": 5}).items():
            flag = option if option == "overrides" else f"--{option}"
            reads: dict[str, Any] = {"action": "store_true"}
            if isinstance(default, list):
                reads = {"nargs": "*", "type": type(default[0]) if default else str}
            elif default is not False:
                reads = {"type": type(default)}
            parser.add_argument(flag, default=default, help=HELP.get(option, option), **reads)
        parser.add_argument(
            "--write", type=Path, nargs="?", const=RESULTS, help="numbers, page, figure; a folder"
        )
        parser.set_defaults(run=lambda options: _run(options, draw), least=0.2)


def _run(options: argparse.Namespace, draw: Callable[[BenchResult, Path], list[Path]]) -> None:
    from rich.console import Console

    from lra.bench.measure import measure_cases
    from lra.bench.result import BenchResult, facts_of, stem_of, terminal_table

    benchmark = importlib.import_module(f"lra.bench.{options.what}").benchmark(options)
    rows = measure_cases(benchmark, options)
    about = {"title": benchmark.title, "base": benchmark.base, "notes": benchmark.notes}
    result = BenchResult(facts=facts_of(options, **about), rows=rows)
    Console(highlight=False).print(terminal_table(result))
    if options.write:
        stem = options.write / stem_of(benchmark.stem, result.facts)
        for path in [*result.save(stem), *draw(result, stem)]:
            print(f"written to {path}")
