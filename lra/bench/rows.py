"""The results of a benchmark: one row per case, length and measure, and the arithmetic on them.

The file of a benchmark (.json) holds everything: page, CSV and picture are made from it alone.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from lra.base.config import UserError
from lra.base.disk import write_atomically

ANY = "any"  # every measure
TAIL = 3  # a slope is fitted over this many of the longest measured lengths


class BenchMeasure(NamedTuple):
    title: str
    unit: str
    factor: float  # from the number in a row to this unit


MEASURES = {
    "seconds": BenchMeasure("time", "ms", 1e3),
    "train_seconds": BenchMeasure("time of forward + backward", "ms", 1e3),
    "forward_seconds": BenchMeasure("time of forward", "ms", 1e3),
    "prefill_seconds": BenchMeasure("time of the prompt", "ms", 1e3),
    "decode_seconds": BenchMeasure("time of one more token", "ms", 1e3),
    "state_bytes": BenchMeasure("state", "KiB", 2**-10),
    "peak_bytes": BenchMeasure("peak memory", "MiB", 2**-20),
    "flops": BenchMeasure("FLOPs of forward", "millions", 1e-6),
}


@dataclass(kw_only=True)
class BenchRow:
    """The values of one measure of one case at one length."""

    group: str  # cases of one group are compared with each other
    case: str
    n: int  # the length; 0 where length plays no part
    measure: str  # ANY in the row that says why a case stopped at this length
    values: list[float] = field(default_factory=list)  # one per round, in order
    stopped: str | None = None


def fastest(row: BenchRow) -> float:
    """The value with the least disturbance: other work of a machine only makes calls slower."""
    return min(row.values)


def median(row: BenchRow) -> float:
    return statistics.median(row.values)


Summary = Callable[[BenchRow], float]
Selection = dict[str, dict[int, BenchRow]]  # rows of one group and measure, by case and length


@dataclass(kw_only=True)
class BenchResult:
    """The contents of a benchmark's file."""

    facts: dict[str, Any]  # benchmark, title, notes, settings, cases, machine, versions, git, date
    rows: list[BenchRow]

    @property
    def name(self) -> str:
        """`attention` for `lra bench attention`."""
        return self.facts["benchmark"].split()[2]

    @property
    def cases(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The facts of every case that are known before it is measured, by group and name."""
        return {(case["group"], case["case"]): case for case in self.facts["cases"]}

    def select(self, group: str, measure: str) -> Selection:
        """The rows of this group and measure, or the rows with the reason why there are none: cases
        in their order, lengths rising."""
        found: Selection = {name: {} for of, name in self.cases if of == group}
        for row in sorted(self.rows, key=lambda row: (row.n, row.measure != ANY)):
            if row.group == group and row.measure in (measure, ANY):
                found[row.case][row.n] = row
        return {name: by_n for name, by_n in found.items() if by_n}

    def save(self, path: Path) -> None:
        """JSON with one line per row."""
        facts = json.dumps(self.facts, indent=2).removesuffix("\n}")
        rows = ",\n".join(f"    {json.dumps(asdict(row))}" for row in self.rows)
        write_atomically(path, f'{facts},\n  "rows": [\n{rows}\n  ]\n}}\n'.encode())

    @classmethod
    def load(cls, path: Path) -> BenchResult:
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            rows = [BenchRow(**row) for row in facts.pop("rows")]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is not a file of numbers from `lra bench` (.json)") from error
        return cls(facts=facts, rows=rows)


# ---------------------------------------------------------------------- arithmetic


def ratios(found: Selection, case: str, base: str, summary: Summary = fastest) -> dict[int, float]:
    """Cost of `case` divided by the cost of `base`, at every length where both were measured."""
    others = found.get(base, {})
    return {
        n: summary(row) / summary(others[n])
        for n, row in found[case].items()
        if row.values and n in others and others[n].values
    }


def ratio_by_round(row: BenchRow, base: BenchRow) -> list[float]:
    """Row divided by base within each round, because a machine that is busy slows both."""
    return [a / b for a, b in zip(row.values, base.values, strict=False)]


def slope(costs: Mapping[int, float]) -> float | None:
    """The exponent of n, fitted to the TAIL longest lengths because constant costs dominate at
    short ones; None with fewer lengths."""
    points = sorted((math.log(n), math.log(cost)) for n, cost in costs.items())[-TAIL:]
    if len(points) < TAIL:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def break_even(costs: Mapping[int, float]) -> tuple[str, float | None]:
    """The length from which ratios of costs, by rising length, stay below 1: as a text, and as a
    number if they cross 1 between two lengths, interpolated on logarithmic axes."""
    # Rounded as in tables, where 1.00 is not less than 1.
    shown = {n: round(ratio, 2) for n, ratio in costs.items()}
    lengths = list(shown)
    if shown[lengths[-1]] >= 1:
        return f"> {lengths[-1]:,}", None
    for low, high in reversed(list(pairwise(lengths))):
        if shown[low] >= 1:
            a, b = math.log(shown[low]), math.log(shown[high])
            n = low * (high / low) ** (a / (a - b))
            digits = 10 ** max(0, math.floor(math.log10(n)) - 1)  # two digits are significant
            return f"≈ {round(n / digits) * digits:,}", n
    return f"≤ {lengths[0]:,}", None
