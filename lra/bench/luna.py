"""`lra bench luna`: the ways to evaluate LUNA, among them the paper's listing, compared with linear
attention and fused softmax.

Cases that are compared run in turn in one process, round after round, so that other work of the
machine slows all of them. A ratio is the median over rounds of the ratio within a round.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from lra.base.config import UserError
from lra.bench.cases import AttentionCase, StepCase, training_pass
from lra.bench.rows import BenchResult, median, ratio_by_round
from lra.bench.sheet import Benchmark, SheetTable, by_length, with_range
from lra.bench.worker import BenchCase, BenchMeter, BenchRules
from lra.settings.compose import compose
from luna.kernels import cpu
from luna.kernels.scalar_mlp import scalar_mlp

HEADS, HEAD_DIM = 2, 32
M, L, HIDDEN = 8, 8, 64
WIDTHS = (16, 64, 128, 256, 512)  # hidden widths of the feature map
TASKS = ("image", "text")
STEP_BATCH = 2
LISTING, SOFTMAX, WIDE = "luna, the listing", "softmax, fused", f"linear, D = {M * L}"
OUTPUTS = {"luna, softplus": "softplus", "luna, exp": "exp"}  # of the MLPs, in place of relu
NOTES = (
    f"{HEADS} heads of {HEAD_DIM}, M = {M}, L = {L}, hidden {HIDDEN}, float32, forward and "
    f"backward; training steps of batch {STEP_BATCH}, with the optimiser",
    "times: every round makes two calls of each case and times the second; tables have medians "
    "over rounds; ratios are taken within a round and shown as median (least .. largest)",
    f"`{WIDE}`: linear attention (elu + 1) with queries and keys as wide as LUNA's features",
)


def benchmark(options: Namespace) -> Benchmark:
    if not cpu.AVAILABLE:
        raise UserError("this benchmark needs numba: pip install 'luna-lra[fast]'")
    return Benchmark(
        stem="luna",
        title="LUNA's evaluations",
        notes=[f"batch {options.batch}, {NOTES[0]}", *NOTES[1:]],
        cases=[*_feature_maps(options), *_attentions(options), *_steps()],
        # The listing leaves gigabytes to be freed during the next call, so the first is not timed.
        rules=BenchRules.of(options, calls=1, least=0.0, dear=math.inf),
        settings={"heads": HEADS, "head_dim": HEAD_DIM, "M": M, "L": L, "hidden": HIDDEN,
                  "step_batch": STEP_BATCH},
    )  # fmt: skip


# ---------------------------------------------------------------------- cases


@dataclass(frozen=True, kw_only=True)
class FeatureMapCase(BenchCase):
    """Forward and backward of the L scalar networks of one head."""

    evaluate: str
    hidden: int
    batch: int

    def costs(self, n: int, meter: BenchMeter) -> dict[str, float]:
        torch.manual_seed(0)
        u = torch.randn(1, self.batch * HEADS * n * M, requires_grad=True)
        gradient = torch.randn(1, u.shape[1], L)
        shapes = [(1, L, self.hidden)] * 3 + [(1, L)]  # e, f, a, g, initialised as linear layers
        bounds = [1.0, 1.0, self.hidden**-0.5, self.hidden**-0.5]
        weights = [
            ((2 * torch.rand(shape) - 1) * bound).requires_grad_()
            for shape, bound in zip(shapes, bounds, strict=True)
        ]
        leaves = [u, *weights]

        def call() -> None:
            y = scalar_mlp(*leaves, nonneg=True, evaluate=self.evaluate)  # type: ignore[arg-type]
            torch.autograd.grad(y, leaves, gradient)

        return meter.seconds({"train_seconds": call})


@dataclass(frozen=True, kw_only=True)
class ForwardBackwardCase(AttentionCase):
    """Forward and backward alone."""

    def costs(self, n: int, meter: BenchMeter) -> dict[str, float]:
        attention = self.build(n, meter.device)
        q, k, v, _ = self.inputs(n, meter.device)
        call = training_pass(attention, [q, k, v], partial(attention, q, k, v))
        return meter.seconds({"train_seconds": call}) | meter.peak_bytes(call)


def _feature_maps(options: Namespace) -> Iterator[FeatureMapCase]:
    """The feature map alone, at the longest length."""
    chosen = [("dense", HIDDEN), ("piecewise", HIDDEN), *(("compiled", w) for w in WIDTHS)]
    for evaluate, hidden in chosen:
        yield FeatureMapCase(
            group="feature map", name=_map_name(evaluate, hidden), lengths=[max(options.lengths)],
            evaluate=evaluate, hidden=hidden, batch=options.batch,
        )  # fmt: skip


def _map_name(evaluate: str, hidden: int) -> str:
    return f"{evaluate}, hidden {hidden}"


def _attentions(options: Namespace) -> Iterator[ForwardBackwardCase]:
    luna: dict[str, Any] = {"method": "luna", "options": {"M": M, "L": L, "hidden": HIDDEN}}

    def evaluated(how: str) -> dict[str, Any]:
        return luna | {"options": luna["options"] | {"evaluate": how}}

    chosen = {
        LISTING: evaluated("dense"),
        "luna": luna,
        "linear": {"method": "linear"},
        WIDE: {"method": "linear", "head_dim": M * L, "value_dim": HEAD_DIM},
        SOFTMAX: {"method": "softmax"},
        "luna, piecewise": evaluated("piecewise"),
        "luna, compiled": evaluated("compiled"),
    }
    for name, output in OUTPUTS.items():
        chosen[name] = luna | {"options": luna["options"] | {"nonneg": output}}
    slot = {"lengths": options.lengths, "batch": options.batch, "heads": HEADS}
    for name, what in chosen.items():
        yield ForwardBackwardCase(
            group="attention", name=name, **slot | {"head_dim": HEAD_DIM} | what
        )


def _steps() -> Iterator[StepCase]:
    """Training steps of the small model."""
    ways = {
        LISTING: "attention=luna attention.evaluate=dense",
        "luna": "attention=luna",
        "linear": "attention=linear",
        SOFTMAX: "attention=softmax",
    }
    for task in TASKS:
        common = f"task={task} model=small compute=off protocol.recipe.batch={STEP_BATCH}"
        n = compose(common.split()).protocol.data.pad_to
        for name, own in ways.items():
            words = f"{common} {own}".split()
            yield StepCase(group=f"step, {task}", name=name, lengths=[n], words=words)


# ---------------------------------------------------------------------- tables


def tables(result: BenchResult) -> Iterator[SheetTable]:
    head = ["ratio of times, or of memory", "target", "measured"]
    yield SheetTable("Ratios", head, [list(line) for line in targets(result)])
    yield by_length(result, "feature map", "train_seconds", summary=median)
    groups = {"attention": "train_seconds"} | {f"step, {task}": "seconds" for task in TASKS}
    for group, seconds in groups.items():
        for measure in (seconds, "peak_bytes"):
            yield by_length(result, group, measure, summary=median)


def targets(result: BenchResult) -> Iterator[tuple[str, str, str]]:
    """Per ratio: its name, the target and the measured value."""

    def ratio(slow: str, fast: str, group: str, n: int, measure: str = "train_seconds") -> str:
        found = result.select(group, measure)
        return with_range(ratio_by_round(found[slow][n], found[fast][n]), ".2f")

    lengths = sorted(result.facts["settings"]["lengths"])
    group, n = "feature map", lengths[-1]
    listing, compiled = _map_name("dense", HIDDEN), _map_name("compiled", HIDDEN)
    yield f"{group}, n = {n}: listing / compiled", ">= 30", ratio(listing, compiled, group, n)
    maps = result.select(group, "train_seconds")
    times = [median(row) for w in WIDTHS if (row := maps[_map_name("compiled", w)][n]).values]
    flat = f"{max(times) / min(times):.2f}" if times else "–"
    widths = f"hidden {WIDTHS[0]} .. {WIDTHS[-1]}"
    yield f"{group}, n = {n}: slowest / fastest of {widths}", "<= 1.3", flat
    for n in lengths:
        least = ">= 3" if n >= 4096 else ">= 1" if n >= 1024 else ""
        yield f"n = {n}: luna / {WIDE}", "<= 1.15", ratio("luna", WIDE, "attention", n)
        yield f"n = {n}: luna / linear", "", ratio("luna", "linear", "attention", n)
        yield f"n = {n}: softmax / luna", least, ratio(SOFTMAX, "luna", "attention", n)
        yield f"n = {n}: listing / luna", "", ratio(LISTING, "luna", "attention", n)
        measured = result.select("attention", "train_seconds")
        for name in filter(measured.__contains__, OUTPUTS):  # older files lack them
            yield f"n = {n}: {name} / luna", "<= 1.3", ratio(name, "luna", "attention", n)
            memory = ratio(name, WIDE, "attention", n, "peak_bytes")
            yield f"n = {n}: peak memory, {name} / {WIDE}", "<= 1.2", memory
    for group in (f"step, {task}" for task in TASKS):
        ((n, _),) = result.select(group, "seconds")["luna"].items()
        yield f"{group}: listing / luna", ">= 8", ratio(LISTING, "luna", group, n, "seconds")
        memory = ratio("luna", "linear", group, n, "peak_bytes")
        yield f"{group}: peak memory, luna / linear", "<= 1.2", memory
