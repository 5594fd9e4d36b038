"""What a page of results may call (pages.py), of two rows or more: effects of settings, rank
correlations, and tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lra.base.errors import UserError
from lra.report.cell import Cell
from lra.report.stats import Welch, half_width, welch_of
from lra.report.study import Fact, Study, line_of
from lra.report.versus import paired_tests

ENDS = (("low", "z.1f"), ("high", "z.1f"))


def effect(study: Study, table: str, **where: Any) -> Fact:
    """A line of a table's effects: mean, low and high of its interval, pairs, runs."""
    fields = line_of(study.table(table).effects, where, f"effects of {table}")
    return Fact(f"effects of {table}", fields, _interval(fields, "mean"))


def order(study: Study, table: str, column: str) -> Fact:
    """The rank correlation of a table's column with the table that it is set against: correlation,
    low, high, methods."""
    fields = line_of(study.table(table).agreements, {"column": column}, f"orders of {table}")
    return Fact(f"orders of {table}", fields)


def pair(study: Study, table: str, first: str, second: str, column: str = "") -> Fact:
    """Two rows of a table of conversions, compared example by example: the difference in points,
    and p, corrected for the pairs that the table compares."""
    found, column = study.column(table, column)
    where = {"first": first, "second": second, "column": column}
    line = line_of(found.pairs, where, f"pairs of {table}")
    return Fact(f"pairs of {table}", {name: line[name] for name in ("difference", "p")})


def against(study: Study, table: str, row: str, column: str = "") -> Fact:
    """One row of a table of conversions against all others that are not the teacher, example by
    example: how many, how far below the row the nearest and the farthest are, the largest p."""
    found, column, _ = study.cell(table, row, column)
    records = found.column(column)["records"].dropna().to_dict()
    tested = paired_tests(records, lambda a, b: row in (a, b))
    below = [points if a == row else -points for a, _, points, _ in tested]
    fields = {
        "number": len(below),
        "nearest": min(below),
        "farthest": max(below),
        "p": max(p for *_, p in tested),
    }
    return Fact(f"{table}, all against {row}", fields)


def welch(
    study: Study, table: str, row: str | Sequence[str], than: str | Sequence[str], column: str = ""
) -> Fact:
    """Welch's two-sided test of two rows that were named before: difference, p, low and high of its
    95 % interval, not corrected, and how many seeds of each it needs. Each side is a row, or a list
    of rows that are one method; `mean` and `seeds` are those of the second side."""
    what, a, b = _two_sides(study, table, (row, than), column)
    sides = [[score for cell in side for score in cell.values] for side in (a, b)]
    fields = dict(zip(Welch._fields, welch_of(*sides), strict=True))
    fields |= {"mean": float(np.mean(sides[1])), "seeds": len(sides[1])}
    return Fact(f"Welch's test of {what}", fields, _interval(fields))


def paired(study: Study, table: str, row: str, than: str, column: str = "") -> Fact:
    """Two rows with the same seeds, seed by seed: the mean difference, low and high of Student's
    95 % interval; not corrected. Of a pair of rows alone, where `effect` averages several."""
    what, (a,), (b,) = _two_sides(study, table, (row, than), column)
    sides = [dict(zip(cell.seed, cell.values, strict=True)) for cell in (a, b)]
    if sides[0].keys() != sides[1].keys():
        raise UserError(f"{what} have different seeds")
    differences = [score - sides[1][seed] for seed, score in sides[0].items()]
    mean, half = float(np.mean(differences)), half_width([differences])
    fields = {"difference": mean, "low": mean - half, "high": mean + half}
    return Fact(f"pairs of seeds of {what}", fields, _interval(fields))


def _interval(fields: Mapping[str, Any], mean: str = "difference") -> str:
    numbers = (format(fields[name], form) for name, form in ((mean, "+z.1f"), *ENDS))
    return "{} ({} to {})".format(*numbers)


def _two_sides(
    study: Study, table: str, names: tuple[str | Sequence[str], ...], column: str
) -> tuple[str, list[Cell], list[Cell]]:
    """What is compared in words, and the cells of each side, at least two seeds."""
    rows = [[side] if isinstance(side, str) else [*side] for side in names]
    a, b = ([study.cell(table, row, column)[2] for row in side] for side in rows)
    what = f"{' and '.join(', '.join(side) for side in rows)} in {table}"
    if min(sum(cell.seeds for cell in side) for side in (a, b)) < 2:
        raise UserError(f"{what}: a test needs two seeds of each row")
    return what, a, b
