"""`lra bench`: what the framework costs beside the mathematics (train), what every attention costs
alone, by length (attention), and in a training step, beside its counted FLOPs (compute), what
reading and preparing data cost (data)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path("results/bench")
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
CONVERTED_LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)


def add_parser(commands: argparse._SubParsersAction) -> None:
    bench = commands.add_parser("bench", help="measure: training overhead, every attention alone")
    what = "train|attention|convert|luna|compute|data"
    kinds = bench.add_subparsers(dest="what", required=True, metavar=what)

    train = kinds.add_parser("train", help="training overhead, data loading, start-up")
    train.add_argument("overrides", nargs="*", help="as for lra train")
    train.add_argument("--steps", type=int, default=30, help="steps a timed repetition takes")
    train.add_argument("--repeats", type=int, default=5, help="interleaved repetitions")
    train.set_defaults(run=_train)

    alone = kinds.add_parser(
        "attention",
        help="time, peak memory and FLOPs of every attention by length",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    alone.add_argument(
        "--methods",
        nargs="+",
        metavar="NAME[@PROFILE]",
        help="attentions at their default options; every one, and softmax@published (the matrix "
        "written out) beside the fused one, if not given",
    )
    alone.add_argument("--heads", type=int, default=2)
    alone.add_argument("--head-dim", type=int, default=32)
    _add_rounds(alone, LENGTHS, seconds=10.0, mib=4096.0)
    alone.set_defaults(run=_attention)

    converted = kinds.add_parser(
        "convert",
        help="inference and training step of converted models against softmax, by length",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    converted.add_argument(
        "--methods",
        nargs="+",
        metavar="NAME[@PROFILE]",
        help="beside the original; luna, hedgehog and t2r if not given",
    )
    converted.add_argument(
        "--geometry", choices=["minilm", "bert-base", "vit-b16-like"], default="minilm"
    )
    converted.add_argument(
        "--passes", nargs="+", choices=["inference", "step"], default=("inference", "step")
    )
    _add_rounds(converted, CONVERTED_LENGTHS, seconds=60.0, mib=8192.0)
    converted.set_defaults(run=_convert)

    fast = kinds.add_parser(
        "luna",
        help="LUNA's evaluations against the listing, linear attention and fused softmax, on a CPU",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    fast.add_argument("--lengths", nargs="+", type=int, default=(1024, 4096), metavar="N")
    fast.add_argument("--rounds", type=int, default=5, help="interleaved repetitions")
    fast.add_argument("--threads", type=int, default=1, help="of torch")
    fast.add_argument("--batch", type=int, default=8)
    fast.add_argument("--out", type=Path, default=RESULTS)
    fast.set_defaults(run=_luna)

    counted = kinds.add_parser(
        "compute",
        help="time and peak memory of a training step beside its counted FLOPs",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    counted.add_argument("overrides", nargs="*", help="as for lra train: task=listops model=small")
    counted.add_argument("--methods", nargs="+", metavar="NAME", help="every one if not given")
    counted.add_argument("--batch", type=int, default=4)
    counted.add_argument("--steps", type=int, default=5, help="timed, in each round")
    counted.add_argument(
        "--repeats", type=int, default=3, help="rounds over all methods, interleaved"
    )
    counted.add_argument("--threads", type=int, default=1, help="of torch, on a CPU")
    counted.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    counted.add_argument(
        "--timeout", type=float, default=600.0, help="seconds for one method in one round"
    )
    counted.add_argument("--out", type=Path, default=Path("results/compute"))
    counted.set_defaults(run=_compute)

    reading = kinds.add_parser("data", help="drawing, preparing, opening and reading data")
    reading.add_argument(
        "--prepare",
        nargs="+",
        action="append",
        metavar=("TASK", "KEY=VALUE"),
        help="as for lra data prepare, once for every data set; generated ones if not given",
    )
    reading.add_argument("--workers", type=int, default=2, help="processes that prepare")
    reading.add_argument("--seconds", type=float, default=6.0, help="for each measurement")
    reading.add_argument("--repeats", type=int, default=3, help="rounds that time is split over")
    reading.add_argument("--out", type=Path, default=RESULTS, help="folder of the tables")
    reading.set_defaults(run=_data)


def _add_rounds(
    parser: argparse.ArgumentParser, lengths: Sequence[int], *, seconds: float, mib: float
) -> None:
    """What lra.bench.rounds.Settings has."""
    parser.add_argument("--lengths", nargs="+", type=int, default=lengths, metavar="N")
    parser.add_argument(
        "--repeats", type=int, default=3, help="rounds over all methods, interleaved"
    )
    parser.add_argument("--threads", type=int, default=1, help="of torch, on a CPU")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--seconds",
        type=float,
        default=seconds,
        help="a method stops where one pass would take longer",
    )
    parser.add_argument("--mib", type=float, default=mib, help="or would need more memory")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="folder of the tables and pictures"
    )


def _train(arguments: argparse.Namespace) -> None:
    from lra.bench.train import train

    train(arguments.overrides, steps=arguments.steps, repeats=arguments.repeats)


def _attention(arguments: argparse.Namespace) -> None:
    from lra.bench.attention import Settings, attention

    chosen = {key: getattr(arguments, key) for key in Settings.__dataclass_fields__}
    attention(arguments.methods, Settings(**chosen), out=arguments.out)


def _convert(arguments: argparse.Namespace) -> None:
    from lra.bench.convert import Settings, bench

    chosen = {key: getattr(arguments, key) for key in Settings.__dataclass_fields__}
    bench(arguments.methods, Settings(**chosen), arguments.out)


def _luna(arguments: argparse.Namespace) -> None:
    from lra.bench.luna import Settings, bench

    chosen = {key: getattr(arguments, key) for key in ("lengths", "rounds", "threads", "batch")}
    bench(Settings(**chosen), arguments.out)


def _compute(arguments: argparse.Namespace) -> None:
    from lra.bench.compute import Settings, bench

    chosen = {key: getattr(arguments, key) for key in Settings.__dataclass_fields__}
    bench(arguments.overrides, arguments.methods, Settings(**chosen), arguments.out)


def _data(arguments: argparse.Namespace) -> None:
    from lra.bench.data import bench

    bench(
        arguments.prepare or (),
        workers=arguments.workers,
        seconds=arguments.seconds,
        repeats=arguments.repeats,
        out=arguments.out,
    )
