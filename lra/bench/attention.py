"""`lra bench attention`: time, peak memory and FLOPs of every attention by length."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

import luna
from lra.bench.cases import AttentionCase, methods_of
from lra.bench.rows import TAIL, BenchResult, Selection, fastest, slope
from lra.bench.sheet import Benchmark, SheetTable, by_length
from lra.bench.worker import BenchRules

GROUP = "attention"
NOTES = (
    "`softmax` is torch's fused kernel; `softmax (published)` stores the attention matrix",
    "times: the fastest call of all rounds, each method in its own process; forward without "
    "gradients in evaluation mode, forward + backward in training mode",
    "memory: the allocator's peak during forward + backward, without inputs and parameters",
    f"slope: the exponent of n, fitted to the {TAIL} longest lengths measured",
)


def benchmark(options: Namespace) -> Benchmark:
    words = options.methods or [*luna.names(), "softmax@published"]
    slot = {key: getattr(options, key) for key in ("batch", "heads", "head_dim")}
    cases = [
        AttentionCase(group=GROUP, lengths=options.lengths, alone=True, **slot, **method)
        for method in methods_of(words)
    ]
    described = "batch {batch}, {heads} heads of {head_dim}, float32, no mask, default options"
    return Benchmark(
        stem="attention",
        title="Every attention alone, by length",
        notes=[described.format(**slot), *NOTES],
        cases=cases,
        rules=BenchRules.of(options),
    )


def tables(result: BenchResult) -> Iterator[SheetTable]:
    for measure in ("train_seconds", "forward_seconds", "peak_bytes", "flops"):
        yield by_length(result, GROUP, measure, last=("slope", _slope), cheapest_first=True)


def _slope(found: Selection, case: str) -> str:
    fitted = slope({n: fastest(row) for n, row in found[case].items() if row.values})
    return "–" if fitted is None else f"{fitted:.2f}"
