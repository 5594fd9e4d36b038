"""Tables whose rows differ in two settings, as grids: one setting down, the other across. The
terminal and lra/figures show them in the same colours."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import pandas as pd

from lra.report.cell import Cell, each
from lra.report.table import Table, pairs_of, short_name, sortable

# The colours of the lowest and of the highest score. Their lightness alone tells them apart, so
# that nobody needs to see hues, and a print in grey says the same.
MIXED = "#d0d0d0"  # of a cell whose seeds are of two kinds
LIGHT, DARK = (0xF2, 0xF0, 0xF8), (0x33, 0x22, 0x88)
MISSING = "–"


@dataclasses.dataclass
class Grid:
    """The cells of one column of a table, by the values of two settings as texts."""

    down: str  # the short name of a setting: M
    across: str
    column: str  # a task, or a value of the setting that the table's columns are
    others: str  # what else tells these rows from others of the table, else empty
    cells: dict[tuple[str, str], Cell]  # of (down, across)
    rows: list[str]  # the values of `down` in order
    columns: list[str]

    def texts(self) -> pd.DataFrame:
        """`41.0 ± 0.5 (3)` of every cell, `–` where there is no run."""
        lines = [
            [self._text(self.cells.get((row, column))) for column in self.columns]
            for row in self.rows
        ]
        index = pd.Index([f"{self.down}={row}" for row in self.rows], name="")
        return pd.DataFrame(lines, index, [f"{self.across}={column}" for column in self.columns])

    def _text(self, cell: Cell | None) -> str:
        return MISSING if cell is None else cell.marked


def grids_of(table: Table) -> Iterator[Grid]:
    """The grids of every column, one for each set of rows that differ in nothing else. Rows that
    lack one of the two settings are in none."""
    if not table.costs or (factors := factors_of(table)) is None:  # conversions have no settings
        return
    names = [key for key in _differing(table) if key not in factors]
    several = table.rows["attention"].nunique() > 1
    groups: dict[str, list[str]] = {}
    for row, attention, options in table.rows[["attention", "options"]].itertuples():
        if any(options.get(factor) is None for factor in factors):
            continue
        others = {k: options[k] for k in names if options.get(k) is not None}
        name = f"{attention if several else ''} {pairs_of(others)}".strip()
        groups.setdefault(name, []).append(row)
    for column in table.columns:
        there = table.column(column)
        for name, rows in groups.items():
            of_group = there.loc[[row for row in rows if row in there.index]]
            keys = [tuple(options[factor] for factor in factors) for options in of_group["options"]]
            if _crossed(keys):
                yield _placed(factors, column, name, keys, of_group)


def _placed(
    factors: tuple[str, str],
    column: str,
    others: str,
    keys: Sequence[tuple[object, ...]],
    cells: pd.DataFrame,
) -> Grid:
    downs, acrosses = (sorted({*values}, key=sortable) for values in zip(*keys, strict=True))
    by_key = zip(keys, each(cells), strict=True)
    return Grid(
        *factors,
        column=column,
        others=others,
        cells={(str(down), str(across)): cell for (down, across), cell in by_key},
        rows=[*map(str, downs)],
        columns=[*map(str, acrosses)],
    )


def factors_of(table: Table) -> tuple[str, str] | None:
    """The two settings of a grid: those that the table varies; else, if all rows have the same
    attention, the two in which they differ."""
    differing = _differing(table)
    asked = [short_name(setting) for setting in table.spec.vary]
    if len(asked) != 2 or not {*asked} <= {*differing}:
        asked = differing if table.rows["attention"].nunique() == 1 else []
    return (asked[0], asked[1]) if len(asked) == 2 else None


def _differing(table: Table) -> list[str]:
    """The options in which rows of the table differ, among those that have them."""
    values: dict[str, set[str]] = {}
    for options in table.rows["options"]:
        for key, value in options.items():
            values.setdefault(key, set()).update([] if value is None else [str(value)])
    return [key for key, found in values.items() if len(found) > 1]


def _crossed(keys: Sequence[tuple[object, ...]]) -> bool:
    """Whether each setting changes somewhere while the other one does not: a list of pairs such as
    8 x 8, 16 x 4, of which all others would be missing, is no grid."""
    return all(len({*values}) < len(keys) for values in zip(*keys, strict=True)) if keys else False


# ---------------------------------------------------------------------- colours


def scale_of(grids: Iterable[Grid]) -> tuple[float, float]:
    """The scores at the ends of the colours, the worst and the best. The score of one answer to
    everything is among them: a scale of the cells alone would make a landscape of any noise."""
    cells = [cell for grid in grids for cell in grid.cells.values()]
    scores = pd.Series([n for cell in cells for n in (cell.score, cell.floor)], dtype=float)
    worst, best = scores.min(), scores.max()
    return (worst, best) if cells[0].sign > 0 else (best, worst)


def colour_of_cell(cell: Cell, scale: tuple[float, float]) -> str:
    """That of its mean; grey, where its seeds are of two kinds and none is near that."""
    return MIXED if cell.mixed else colour_of(cell.score, scale)


def colour_of(score: float, scale: tuple[float, float]) -> str:
    """`#332288`"""
    worst, best = scale
    share = (score - worst) / (best - worst) if best != worst else 0.0
    mixed = (light + share * (dark - light) for light, dark in zip(LIGHT, DARK, strict=True))
    return "#" + "".join(f"{round(part):02x}" for part in mixed)


def ink_on(colour: str) -> str:
    """Black or white, whichever can be read on it."""
    red, green, blue = bytes.fromhex(colour[1:])
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else "#ffffff"
