"""`lra bench`: what the framework costs beside the mathematics (train), and what every attention
costs alone, by length (attention)."""

from __future__ import annotations

import argparse
from pathlib import Path

RESULTS = Path("results/bench")
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


def add_parser(commands: argparse._SubParsersAction) -> None:
    bench = commands.add_parser("bench", help="measure: training overhead, every attention alone")
    kinds = bench.add_subparsers(dest="what", required=True, metavar="train|attention")

    train = kinds.add_parser("train", help="training overhead, data loading, start-up")
    train.add_argument("overrides", nargs="*", help="as for train.py")
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
    alone.add_argument("--lengths", nargs="+", type=int, default=LENGTHS, metavar="N")
    alone.add_argument(
        "--repeats", type=int, default=3, help="rounds over all methods, interleaved"
    )
    alone.add_argument("--threads", type=int, default=1, help="of torch, on a CPU")
    alone.add_argument("--batch", type=int, default=1)
    alone.add_argument("--heads", type=int, default=2)
    alone.add_argument("--head-dim", type=int, default=32)
    alone.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    alone.add_argument(
        "--seconds",
        type=float,
        default=10.0,
        help="a method stops where one pass would take longer",
    )
    alone.add_argument("--mib", type=float, default=4096.0, help="or would need more memory")
    alone.add_argument(
        "--out", type=Path, default=RESULTS, help="folder of the tables and pictures"
    )
    alone.set_defaults(run=_attention)


def _train(arguments: argparse.Namespace) -> None:
    from lra.bench.train import train

    train(arguments.overrides, steps=arguments.steps, repeats=arguments.repeats)


def _attention(arguments: argparse.Namespace) -> None:
    from lra.bench.attention import Settings, attention

    chosen = {key: getattr(arguments, key) for key in Settings.__dataclass_fields__}
    attention(arguments.methods, Settings(**chosen), out=arguments.out)
