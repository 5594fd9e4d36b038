"""Paired comparisons of runs, example by example, from the answers in their records.

Two runs answer the same examples, so a test of the examples sees smaller differences than one of
the two scores (one example is 0.36 points on RTE). An example's value is 1 for a right answer, 0
for a wrong one (in a regression 1 minus the squared error), averaged over a row's seeds. If two
rows are equally good, the sign of each example's difference is random. With one seed this is
McNemar's test.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lra.results.record import Record

FLIPS = 10_000
BLOCK = 100  # flips held at once; numpy draws four signs together, so a multiple of four
REGRESSION = "stsb"


@dataclasses.dataclass(frozen=True)
class Pair:
    """The difference of rows `a` and `b` on a task, in points of accuracy, with Holm's p-value."""

    a: str
    b: str
    difference: float
    p: float


def compare(
    rows: Mapping[str, Sequence[Record]], wanted: Callable[[str, str], bool] = lambda a, b: True
) -> list[Pair]:
    """The wanted pairs of rows on one task, as far as their records have answers."""
    values = {label: _values(records) for label, records in rows.items()}
    answered = {label: value for label, value in values.items() if value is not None}
    pairs = {
        (a, b): answered[a] - answered[b]
        for a, b in itertools.combinations(answered, 2)
        if wanted(a, b) and len(answered[a]) == len(answered[b])
    }
    if not pairs:
        return []
    from statsmodels.stats.multitest import multipletests

    adjusted = multipletests([sign_flips(d) for d in pairs.values()], method="holm")[1]
    return [
        Pair(a, b, 100 * float(d.mean()), float(p))
        for ((a, b), d), p in zip(pairs.items(), adjusted, strict=True)
    ]


def sign_flips(differences: np.ndarray) -> float:
    """Two-sided p-value of the hypothesis that the mean is 0, by random signs. The same differences
    always give the same value. scipy's permutation_test does the same, ten times slower."""
    moved = differences[differences != 0]  # a sign does not change a zero
    if not len(moved):
        return 1.0
    rng, extreme = np.random.default_rng(0), 0
    for _ in range(FLIPS // BLOCK):
        signs = rng.integers(0, 2, (BLOCK, len(moved)), dtype=np.int8) * 2.0 - 1
        extreme += int((np.abs(signs @ moved) >= abs(moved.sum()) - 1e-9).sum())
    return (1 + extreme) / (1 + FLIPS)


def _values(records: Sequence[Record]) -> np.ndarray | None:
    """(examples,): mean over seeds of each example's value; None where a record lacks answers."""
    seeds = []
    for record in records:
        if (answers := record.answers) is None:
            return None
        squared = record["task"] == REGRESSION
        seeds.append(1.0 - (answers.answers - answers.labels) ** 2 if squared else answers.right)
    return np.mean(seeds, axis=0) if seeds else None
