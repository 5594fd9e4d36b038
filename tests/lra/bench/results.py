"""Results made of chosen numbers."""

from __future__ import annotations

from typing import Any

from lra.bench.rows import BenchResult, BenchRow

Values = list[float] | str  # of the rounds, or why there are none
Costs = dict[tuple[str, str, int, str], Values]  # by group, case, length and measure

# Luna is faster than softmax from about 210 tokens on.
INFERENCE: Costs = {
    ("inference", "softmax", 128, "seconds"): [0.01],
    ("inference", "softmax", 256, "seconds"): [0.04],
    ("inference", "softmax", 512, "seconds"): "> 9 s",
    ("inference", "luna", 128, "seconds"): [0.02],
    ("inference", "luna", 256, "seconds"): [0.03],
    ("inference", "luna", 512, "seconds"): [0.06],
}


def result_of(costs: Costs, **facts: Any) -> BenchResult:
    """A result of these costs, on a machine without a name."""
    rows = [
        BenchRow(group=group, case=case, n=n, measure=measure) for group, case, n, measure in costs
    ]
    for row, values in zip(rows, costs.values(), strict=True):
        if isinstance(values, str):
            row.stopped = values
        else:
            row.values = values
    cases = dict.fromkeys((row.group, row.case) for row in rows)
    usual = {
        "benchmark": "lra bench attention", "title": "A title", "notes": ["A note."],
        "settings": {"rounds": 2},
        "machine": {"device": "a CPU", "kind": "cpu", "threads": 1, "system": "Linux"},
        "versions": {"torch": "2.0", "python": "3.11", "luna-lra": "0.1"},
        "git": {"revision": None, "dirty": None}, "date": "2026-01-01",
        "cases": [{"group": g, "case": c, "attention": c.split()[0]} for g, c in cases],
    }  # fmt: skip
    return BenchResult(facts=usual | facts, rows=rows)
