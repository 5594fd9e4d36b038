"""The command line of `lra bench`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.base.config import UserError

if TYPE_CHECKING:
    from lra.bench.rows import BenchResult

Draw = Callable[["BenchResult", Path], list[Path]]  # draws the picture of a result

RESULTS = Path("results/bench")
NOT_SETTINGS = ("overrides", "rounds", "out")
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
MACHINE: dict[str, Any] = {"threads": 1, "device": "cpu"}
# What every benchmark measures, and its options with their defaults.
BENCHMARKS: dict[str, tuple[str, dict[str, Any]]] = {
    "attention": (
        "time, memory and FLOPs of every attention alone, by length",
        {"methods": None, "lengths": LENGTHS, "batch": 1, "heads": 2, "head-dim": 32, **MACHINE,
         "seconds": 10.0, "mib": 4096.0},
    ),
    "luna": (
        "the ways to evaluate LUNA, linear attention and fused softmax, on a CPU",
        {"lengths": (1024, 4096), "batch": 8, "threads": 1, "rounds": 5},
    ),
    "causal": (
        "a prompt at once, then token by token: time, memory and state by length",
        {"methods": None, "lengths": LENGTHS, "batch": 1, "heads": 2, "head-dim": 32, **MACHINE,
         "seconds": 10.0, "mib": 4096.0},
    ),
    "convert": (
        "inference and training of converted models and their softmax original, by length",
        {"methods": None, "geometry": "minilm", "passes": ("inference", "step"),
         "lengths": (128, 256, *LENGTHS[:-1]), "batch": 1, **MACHINE, "seconds": 60.0,
         "mib": 8192.0},
    ),
    "compute": (
        "time and memory of a training step, compared with its counted FLOPs",
        {"overrides": [], "methods": None, "batch": 4, "steps": 5, **MACHINE, "timeout": 600.0,
         "out": Path("results/compute")},
    ),
    "train": (
        "time that the framework adds to a training loop, of loading data and of start-up",
        {"overrides": [], "steps": 30, "rounds": 5},
    ),
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "overrides": {"nargs": "*", "help": "as for lra train: task=listops model=small"},
    "methods": {"nargs": "+", "metavar": "NAME[@PROFILE]",
                "help": "attentions (default: the benchmark's own list)"},
    "geometry": {"choices": ["minilm", "bert-base", "vit-b16-like"], "help": "kind of the model"},
    "passes": {"nargs": "+", "choices": ["inference", "step"], "help": "what to measure"},
    "lengths": {"nargs": "+", "metavar": "N", "help": "lengths in tokens"},
    "batch": {"help": "examples per batch"},
    "heads": {"help": "number of heads"},
    "head-dim": {"help": "width of a head"},
    "steps": {"help": "timed steps per round"},
    "threads": {"help": "threads of torch, on a CPU"},
    "device": {"choices": ["cpu", "cuda"], "help": "where to measure"},
    "seconds": {"help": "longest time of one call: a method is not run at lengths that would "
                "take longer"},
    "mib": {"help": "largest memory: a method is not run at lengths that would need more"},
    "timeout": {"help": "seconds for one method in one round, after which it is stopped"},
    "rounds": {"help": "rounds over all cases"},
    "out": {"help": "folder for numbers, page and picture"},
}  # fmt: skip


def add_parser(commands: Any, draw: Draw) -> None:
    bench = commands.add_parser(
        "bench", help="measure time and memory of attentions, models or training"
    )
    kinds = bench.add_subparsers(dest="what", required=True, metavar="|".join(BENCHMARKS))
    for name, (help, own) in BENCHMARKS.items():
        parser = kinds.add_parser(name, help=help)
        for option, default in (own | {"rounds": 3, "out": RESULTS} | own).items():
            flags = [option if option == "overrides" else f"--{option}"]
            flags += ["--repeats"] if option == "rounds" else []  # its name in older versions
            described = dict(OPTIONS[option])
            if default:
                values = default if isinstance(default, tuple) else (default,)
                described["type"] = type(values[0])
                described["help"] += f" ({' '.join(map(str, values))})"
            parser.add_argument(*flags, default=default, **described)
        settings = [option.replace("-", "_") for option in own if option not in NOT_SETTINGS]
        parser.set_defaults(run=lambda options: _run(options, draw), settings=settings)


def _run(options: argparse.Namespace, draw: Draw) -> None:
    _check(options)
    from lra.bench import attention, causal, compute, convert, luna, rounds, sheet, train

    files = {"attention": attention, "causal": causal, "luna": luna, "convert": convert,
             "compute": compute, "train": train}  # fmt: skip
    benchmark = files[options.what].benchmark(options)
    command = " ".join(["lra bench", options.what, *getattr(options, "overrides", ())])
    settings = {key: getattr(options, key) for key in options.settings}
    facts = sheet.facts_of(benchmark, command, settings)
    stem = sheet.stem_of(benchmark, facts, options.out)
    for done, rows in rounds.rounds(benchmark.cases, benchmark.rules):
        facts["settings"]["rounds"] = done
        result = sheet.BenchResult(facts=facts, rows=rows)
        page = sheet.page(result, files[options.what].tables(result))
        written = sheet.write(result, page, stem) + draw(result, stem)
    print(page)
    for path in written:
        print(f"written to {path}")


def _check(options: argparse.Namespace) -> None:
    for key, given in vars(options).items():
        for value in given if isinstance(given, list) else [given]:
            if isinstance(value, int | float) and value <= 0:
                flag = key.replace("_", "-")
                raise UserError(f"--{flag} must be greater than 0, got {value}")
    if vars(options).get("device") == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UserError("--device cuda: torch sees no GPU here; leave it out to measure a CPU")
