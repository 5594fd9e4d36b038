"""A cell of a table: what the runs of one row on one column amount to.

Each of its columns is declared here, once: what it is, from which column of runs it is made and
how, its role, whether a CSV file has it. A table holds its cells as a data frame with these columns
(table.py), and gives single ones as a `Cell`.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterator, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pandas as pd

from lra.report import stats
from lra.results.record import Record

MOST_LISTED = 5  # seeds of two kinds; of more their ranges are shown
NAN = math.nan


class Role(enum.Enum):
    """What a column of a cell is for."""

    name = "what the cell is of"
    score = "what came out"
    verdict = "how it compares with other rows and with rules"
    cost = "what it costs, whatever machine it runs on"
    time = "what it costs on this machine: shown where all runs of a column had the same one"
    published = "what others printed"
    condition = "of training, shared by all runs of a cell"
    source = "where it comes from"


def _column(
    role: Role, of: str = "", how: Any = "first", *, of_none: Any = None, csv: bool = True
) -> Any:
    """A column that is made of a column of runs by `how`, or set later (without `of`)."""
    return dataclasses.field(
        default=of_none, metadata={"role": role, "of": of, "how": how, "csv": csv}
    )


def _mean_square(noise: pd.Series) -> float:
    return float(noise.astype(float).pow(2).mean(skipna=False) ** 0.5)


@dataclasses.dataclass(kw_only=True)
class Cell:
    """The columns in the order that a CSV file has them; then those that it has not."""

    attention: str = _column(Role.name, "attention")
    options: dict[str, Any] = _column(Role.name, "options")
    score: float = _column(Role.score, "score", "mean", of_none=NAN)
    deviation: float = _column(Role.score, "score", "std", of_none=NAN)
    seeds: int = _column(Role.score, "seed", "size", of_none=0)  # how many; 0 of a teacher
    values: list[float] = _column(Role.score, "score", list)
    leapt: float = _column(Role.verdict, of_none=NAN)  # how many seeds, where there are two kinds
    best: bool = _column(Role.verdict, of_none=False)
    worse: bool = _column(Role.verdict, of_none=False)
    p: float = _column(Role.verdict, of_none=NAN)
    needs: float = _column(Role.verdict, of_none=NAN)  # seeds to tell it from the best
    floor: float = _column(Role.verdict, "floor", of_none=NAN)  # of one answer to everything
    rule: float = _column(Role.verdict, of_none=NAN)  # the best rule's score
    steps_to_third: str = _column(Role.verdict, of_none="")
    steps_to_two_thirds: str = _column(Role.verdict, of_none="")
    learned: bool = _column(Role.verdict, of_none=True)  # it is above the floor
    dead: float = _column(
        Role.cost, "dead_queries", lambda shares: 100 * shares.mean(), of_none=NAN
    )  # percent of queries whose weights sum to 0
    parameters: float = _column(Role.cost, "parameters", "mean", of_none=NAN)
    gflops: float = _column(Role.cost, of_none=NAN)
    state: float | str | None = _column(Role.cost, "state")
    compute: str = _column(Role.cost, of_none="-")
    tuning: str = _column(
        Role.cost, "record", lambda records: tuning_of(records.iloc[0]), csv=False
    )
    steps_per_second: float = _column(Role.time, "steps_per_second", "mean", of_none=NAN)
    peak_memory_mib: float = _column(Role.time, "peak_memory_mib", "mean", of_none=NAN)
    published: float | None = _column(Role.published)
    source: str | None = _column(Role.published)
    protocol: str = _column(Role.condition, "protocol")
    steps_share: float = _column(Role.condition, "steps_share")
    steps: int = _column(Role.condition, "steps")
    batch: int = _column(Role.condition, "batch")
    data_source: str = _column(Role.condition, "data.source")
    fingerprint: str | None = _column(Role.source, "fingerprint")
    revisions: str = _column(
        Role.source, "revision", lambda revisions: " ".join(dict.fromkeys(revisions))
    )
    runs: list[str] = _column(Role.source, "run", list)

    method: str = _column(Role.name, "method", csv=False)  # by which published rows name it
    task: str = _column(Role.name, "task", csv=False)
    identity: str = _column(Role.name, "identity", csv=False)
    title: str = _column(Role.score, "metric.title", csv=False)
    unit: str = _column(Role.score, "metric.unit", csv=False)
    digits: int = _column(Role.score, "metric.digits", csv=False)
    higher_is_better: bool = _column(Role.score, "metric.higher_is_better", csv=False)
    sign: int = _column(Role.score, csv=False)  # 1, or -1 where lower is better
    seed: list[int] = _column(Role.score, "seed", list, csv=False)
    noise: float = _column(Role.score, "noise", _mean_square, of_none=NAN, csv=False)
    examples: float = _column(Role.score, "examples", of_none=NAN, csv=False)
    scored: float = _column(Role.score, "scored", of_none=NAN, csv=False)  # answers of them
    leaps: bool = _column(Role.verdict, of_none=False, csv=False)
    limit: float = _column(Role.verdict, of_none=NAN, csv=False)  # between the two kinds of runs
    incomplete: bool = _column(Role.verdict, of_none=False, csv=False)  # rules are missing
    flops: float = _column(Role.cost, "flops", "mean", of_none=NAN, csv=False)
    their_budget: str = _column(Role.published, of_none="", csv=False)
    record: Record | None = _column(Role.source, "record", csv=False)  # the first
    records: list[Record] = _column(Role.source, "record", list, csv=False)

    @property
    def mixed(self) -> bool:
        """Whether its seeds are of two kinds (leaps.py): then no run is near their mean."""
        return bool(0 < self.leapt < self.seeds)

    @property
    def text(self) -> str:
        """`41.0 ± 0.5 (3)`: mean, sample deviation, number of seeds."""
        if self.mixed:
            return self._both_kinds()
        spread = "" if pd.isna(self.deviation) else f" ± {rounded(self.deviation, self.digits)}"
        seeds = f" ({self.seeds})" if self.seeds else ""
        return f"{rounded(self.score, self.digits)}{spread}{seeds}"

    def _both_kinds(self) -> str:
        """`2 of 3 leapt: 17.4, 35.1, 35.5`, or the ranges of many seeds."""
        leapt = int(self.leapt)
        worst_first = sorted(self.values, key=lambda score: self.sign * score)
        shown = [rounded(score, self.digits) for score in worst_first]
        if len(shown) > MOST_LISTED:
            sides = shown[:-leapt], shown[-leapt:]
            shown = [f"{side[0]} to {side[-1]}" for side in sides]
        return f"{leapt} of {self.seeds} leapt: {', '.join(shown)}"

    @property
    def mark(self) -> str:
        """Behind a mean: shown to be worse than the best, or no better than a rule. Where rules are
        missing, nobody may think that a row without ∅ is better than them: none has it."""
        ruled = not self.learned or self.sign * self.score <= self.sign * self.rule
        return "∅" if ruled and not self.incomplete else "↓" if self.worse else ""

    @property
    def marked(self) -> str:
        return f"{self.text} {self.mark}".strip()

    def of_redrawn_examples(self) -> float:
        """By how much drawing the test examples again moves the scores of the row. Of records that
        do not say so the score is taken for a share of right examples."""
        examples = stats.ANSWERS if pd.isna(self.examples) else self.examples
        if pd.isna(self.noise):
            return stats.noise_of_share(self.score, examples)
        if self.title != "accuracy":
            return float(self.noise)
        answers = examples if pd.isna(self.scored) else self.scored
        # The second: of answers that are all right.
        return max(float(self.noise), stats.noise_of_share(0, answers))


def tuning_of(record: Record) -> str:
    """`lr=0.003, +5.0 runs`: what was chosen on dev, and the steps of its trials, which all seeds
    of a row share, in runs of that row; empty without."""
    if (steps := record.get("tuning.steps")) is None:
        return ""
    return f"lr={record['tuning.chosen']:g}, +{steps / record['steps']:.1f} runs"


COLUMNS = dataclasses.fields(Cell)
CSV = [column.name for column in COLUMNS if column.metadata["csv"]]


def columns_of(*roles: Role) -> list[str]:
    """The columns with these roles."""
    return [column.name for column in COLUMNS if column.metadata["role"] in roles]


def aggregate(runs: pd.DataFrame, *roles: Role) -> pd.DataFrame:
    """The columns of these roles that are made of runs, a line for each (row, column)."""
    made = {
        column.name: (column.metadata["of"], column.metadata["how"])
        for column in COLUMNS
        if column.metadata["role"] in roles and column.metadata["of"]
    }
    return runs.groupby(["row", "column"], sort=False).agg(**made)


def each(cells: pd.DataFrame) -> Iterator[Cell]:
    """The lines of a frame of cells, typed; columns that somebody added are left out."""
    known = [column.name for column in COLUMNS if column.name in cells]
    for values in zip(*(cells[name].tolist() for name in known), strict=True):
        yield Cell(**dict(zip(known, values, strict=True)))


def all_of(cells: pd.DataFrame, what: str) -> pd.Series:
    """A property of every cell, `mark` or `mixed`, as a column."""
    found: Sequence[Any] = [getattr(cell, what) for cell in each(cells)]
    return pd.Series(found, cells.index, dtype=bool if what == "mixed" else object)


def rounded(value: float, digits: int) -> str:
    """Spell a number, ties away from 0: as binary fractions some of them lie below, others above
    what they say."""
    if not math.isfinite(value):
        return str(value)
    exact = Decimal(repr(round(float(value), 9)))
    return f"{exact.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP):f}"
