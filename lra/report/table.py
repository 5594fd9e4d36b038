"""A table as every format shows it: rows of cells, the best of each column and its ties marked.

Two builders make the rows: leaderboard.py from training runs, conversions.py from conversions.
render.py (Markdown, CSV, LaTeX), terminal.py and page.py show any table.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from lra.base.config import UserError
from lra.base.groups import later_options, usual_options
from lra.report import published, stats
from lra.report.published import Published
from lra.results.record import TRAINING, Record

Name = TypeVar("Name", bound=Hashable)
DEAD_QUERIES = (
    "queries of the last test batch whose weights sum to 0, because all are 0 or signed ones "
    "cancel; in the layer with most of them"
)
LEAST_DEAD = 0.05  # percent: what is printed as 0.1


@dataclasses.dataclass(frozen=True)
class Cell:
    """Runs of one row on one task that differ in nothing but the seed."""

    values: list[float]  # percent, one per run
    records: list[Record]  # those runs; empty for the score of a teacher
    published: Published | None = None
    best: bool = False
    tie: float | None = None  # adjusted p-value, where the seeds cannot tell it from the best

    @property
    def mean(self) -> float:
        return stats.mean(self.values)

    @property
    def deviation(self) -> float | None:
        return stats.deviation(self.values)

    @property
    def difference(self) -> float | None:
        return None if self.published is None else self.mean - self.published.value

    @property
    def text(self) -> str:
        """`41.0 ± 0.5 (3)`: mean, sample deviation, number of seeds."""
        spread = "" if self.deviation is None else f" ± {self.deviation:.1f}"
        seeds = f" ({len(self.records)})" if self.records else ""
        return f"{self.mean:.1f}{spread}{seeds}"

    @property
    def floor(self) -> float | None:
        return self.records[0].floor if self.records else None

    @property
    def learned(self) -> bool:
        """True if the mean is above the floor, and where the floor is unknown."""
        # Accuracies are float32; one example of 25,000 is 0.004.
        return self.floor is None or self.mean > self.floor + 1e-3

    @property
    def dead(self) -> float | None:
        """Percent of the queries of the last test batch whose weights sum to 0, in the worst
        layer; the mean over seeds. None for methods that cannot fail so."""
        shares = [r["test.dead_rows"] for r in self.records if r.get("test.dead_rows") is not None]
        return 100 * stats.mean(shares) if shares else None

    def cost(self, key: str) -> float:
        return stats.mean([r[key] for r in self.records])


@dataclasses.dataclass(frozen=True)
class Effect:
    """The change by one level of a setting against the base, over pairs of runs that differ in
    nothing else."""

    setting: str  # attention, or the last word of the setting's name
    level: str
    base: str
    cells: list[list[float]]  # points of accuracy: a list per pair of rows, a number per seed

    @property
    def differences(self) -> list[float]:
        return sorted(d for cell in self.cells for d in cell)

    @property
    def means(self) -> list[float]:
        return list(map(stats.mean, self.cells))

    @property
    def mean(self) -> float:
        return stats.mean(self.means)

    @property
    def half_width(self) -> float | None:
        """Half the width of the 95 % interval: over pairs of rows, each the mean of its seeds; of
        one or two pairs, which say nothing of others, over seeds. None for single runs."""
        return stats.half_width([self.means] if len(self.cells) > 2 else self.cells)


class Shared(NamedTuple):
    attention: str
    here: Cell
    there: Cell


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How far a column of one table has the order of methods of a task of another."""

    column: str
    other: Table
    task: str  # of the other table
    shared: list[Shared]
    correlation: float  # Spearman's, of the means
    interval: tuple[float, float] | None  # of 95 %; None for a perfect order


@dataclasses.dataclass(frozen=True)
class TableRow:
    label: str
    attention: str
    cells: dict[str, Cell]  # by task
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # those in the label
    summary: dict[str, float | None] = dataclasses.field(default_factory=dict)  # over all tasks
    published_summary: float | None = None  # shown beside the first summary
    tasks: str = ""  # how many tasks of the summary the row has: 3/5
    ranked: bool = True  # False: a reference, never the best of its column


@dataclasses.dataclass(frozen=True)
class Table:
    name: str
    title: str
    tasks: list[str]
    rows: list[TableRow]
    notes: list[str]  # what a reader must know to read the numbers; plain sentences
    summaries: tuple[str, ...]  # columns over all tasks
    published: str | None = None  # the published table shown beside this one
    # Tasks whose cells have costs -> whether all of the task's runs were timed on one machine.
    timed: dict[str, bool] = dataclasses.field(default_factory=dict)
    axis: str = ""  # what the columns are values of, in place of tasks: pairs of `pairs=16`
    conditions: str = ""  # what all runs share, in a few words
    caveat: str = ""  # what these runs cannot show
    repeated: list[Record] = dataclasses.field(default_factory=list)  # attempts not shown
    unchosen: list[Record] = dataclasses.field(default_factory=list)  # runs at other rates, say
    pairs: list[list[str]] = dataclasses.field(default_factory=list)  # example-by-example tests
    effects: list[Effect] = dataclasses.field(default_factory=list)  # of single settings
    agreements: list[Agreement] = dataclasses.field(default_factory=list)  # with another table

    @property
    def single(self) -> str | None:
        """The task of a table with one task and costs: its costs are columns of the table."""
        return self.tasks[0] if self.timed and len(self.tasks) == 1 else None

    def dead(self, task: str) -> bool:
        """Tell if the rows of this task show dead queries: a tenth of a percent of them."""
        cells = (row.cells[task] for row in self.rows if task in row.cells)
        return any((cell.dead or 0) >= LEAST_DEAD for cell in cells)

    @property
    def records(self) -> list[Record]:
        return [r for _, _, cell in self.cells() for r in cell.records]

    @property
    def at_floor(self) -> bool:
        return not all(cell.learned for _, _, cell in self.cells())

    def cells(self) -> Iterator[tuple[TableRow, str, Cell]]:
        for row in self.rows:
            for task, cell in row.cells.items():
                yield row, task, cell


def cells_by_row(
    records: Iterable[Record],
    name_of: Callable[[Record], Name],
    published_for: Callable[[Record, Name], Published | None],
) -> dict[Name, dict[str, Cell]]:
    """The cells of every row, by task; runs of one cell have the same row and task. UserError if
    they differ in more than the seed."""
    groups: dict[Name, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        groups[name_of(record)][record["task"]].append(record)
    cells: dict[Name, dict[str, Cell]] = defaultdict(dict)
    for name, by_task in groups.items():
        for task, runs in by_task.items():
            if len({(r["identity"], r.code) for r in runs}) > 1:
                raise UserError(
                    f"runs of {runs[0].attention} on {task} differ in settings that no row shows; "
                    "name them in `vary` (docs/results.md)"
                )
            runs.sort(key=lambda r: r["seed"])
            cells[name][task] = Cell([r.score for r in runs], runs, published_for(runs[0], name))
    return cells


def refuse_same_names(table: str, rows: Sequence[TableRow]) -> None:
    """UserError where two rows have one name, by which a reader would not tell them apart."""
    names = Counter(row.label for row in rows)
    twice = [name for name, n in names.items() if n > 1]
    if twice:
        raise UserError(
            f"table '{table}' has several rows named '{twice[0]}': let fewer settings vary"
        )


def mark_best(rows: Sequence[TableRow], tasks: Sequence[str]) -> list[TableRow]:
    """Mark the best cell of every task, and the cells that tie with it.

    A cell at the floor, where nothing was learned, does not take part, nor is a best mean of a
    single seed marked, whose lead may be chance.
    """
    rows = [dataclasses.replace(row, cells=dict(row.cells)) for row in rows]
    for task in tasks:
        cells = {i: r.cells[task] for i, r in enumerate(rows) if r.ranked and task in r.cells}
        cells = {i: cell for i, cell in cells.items() if cell.learned}
        if not cells:
            continue
        best, tied = stats.ties({i: cell.values for i, cell in cells.items()})
        for i, cell in cells.items():
            first = i in best and len(cell.values) > 1
            rows[i].cells[task] = dataclasses.replace(cell, best=first, tie=tied.get(i))
    return rows


def pairs_of(values: Mapping[str, Any]) -> str:
    """`M=8 L=8`"""
    return " ".join(f"{k}={v}" for k, v in values.items())


def options_of(record: Record) -> dict[str, Any]:
    """The options of a run's attention; those that are younger than the record as they usually
    are."""
    usual = usual_of(record) if record.kind == TRAINING else {}
    options = usual | later_options(record.attention) | record["attention"]
    return {key: value for key, value in options.items() if key != "name"}


def usual_of(record: Record) -> dict[str, Any]:
    return usual_options(record.attention, record["settings.task.name"], record["protocol.name"])


def setting_of(record: Record, key: str, absent: Any = None) -> Any:
    """A setting of a training run, `protocol.recipe.lr` or `attention.M`."""
    value = record.get(f"settings.{key}")
    if value is None and key.startswith("attention."):
        value = options_of(record).get(key.removeprefix("attention."))
    return absent if value is None else value


def short_name(setting: str) -> str:
    """`M` for `attention.M`, `protocol` for `protocol.name`."""
    return setting.removesuffix(".name").rpartition(".")[2]


def sortable(value: Any) -> tuple[bool, float, str]:
    """A key that orders numbers by size, before all other values."""
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, str(value)


def one_line(text: str) -> str:
    return " ".join(text.split())


# ---------------------------------------------------------------------- published numbers beside


class Beside(NamedTuple):
    """Measured and published numbers and their difference, ordered by name and not ranked."""

    explanation: str
    head: list[str]
    body: list[list[str]]
    sources: list[str]


def beside(table: Table) -> Beside | None:
    """Set measured beside published numbers; None where no cell has a published one."""
    rows = [r for r in table.rows if any(c.published for c in r.cells.values())]
    if not rows or table.published is None:
        return None
    if table.timed and len({r.attention for r in table.rows}) > 1:
        rows = sorted(rows, key=lambda r: r.label)
    averaged = any(row.published_summary is not None for row in rows)
    title, digits = published.title(table.published), published.digits(table.published)
    body: list[list[str]] = []
    cited: dict[str, None] = {}
    for row in rows:
        numbers: list[tuple[float | None, float | None] | None] = [
            (c.mean, c.published.value) if c and c.published else None
            for c in map(row.cells.get, table.tasks)
        ]
        if averaged:
            numbers.append((row.summary.get(table.summaries[0]), row.published_summary))
        sources = dict.fromkeys(c.published.source for c in row.cells.values() if c.published)
        cited |= sources
        compared = (_difference(*pair, digits) if pair else "" for pair in numbers)
        body.append([row.label, *compared, ", ".join(sources)])
    return Beside(
        f"Measured / published (difference), ordered by name. Published: {title}. These come from "
        "other protocols, budgets, data and sometimes models than the measured runs, so the two "
        "are not ranked together.",
        ["attention", *table.tasks, *(table.summaries[:1] if averaged else []), "published by"],
        body,
        [f"{source}: {published.sources()[source]}" for source in cited],
    )


def _difference(measured: float | None, printed: float | None, digits: int) -> str:
    """`51.5 / 38.94 (+12.6)`, with as many digits as were printed."""
    if measured is None or printed is None:
        return ""
    return f"{measured:.1f} / {printed:.{digits}f} ({measured - printed:+.1f})"
