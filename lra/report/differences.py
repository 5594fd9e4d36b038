"""What claims say of two rows or more: effects of settings, rank correlations, and tests."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lra.base.errors import UserError
from lra.report.stats import LEVEL, half_width
from lra.report.table import Table
from lra.report.value import Value, cell_of, column_of, line_of, table_of
from lra.report.versus import paired_tests

PAIR = re.compile(r"([-+][\d.]+) \(p ([\d.e-]+)\)")  # as versus.example_by_example writes it


def effect(source: Mapping[str, Any], tables: Sequence[Table], _: Path) -> Value:
    """A line of a table's effects: mean, low and high of its interval, pairs, runs."""
    table = table_of(source["effect"], tables)
    where = {key: value for key, value in source.items() if key != "effect"}
    fields = line_of(table.effects, where, f"effects of {table.spec.name}")
    text = "{mean:+z.1f} ({low:z.1f} to {high:z.1f})".format(**fields)
    return Value(f"effects of {table.spec.name}", fields, text)


def order(source: Mapping[str, Any], tables: Sequence[Table], _: Path) -> Value:
    """A rank correlation with another table: correlation, low, high, methods."""
    table = table_of(source["order"], tables)
    where = {key: value for key, value in source.items() if key != "order"}
    return Value("order", line_of(table.agreements, where, f"orders of {table.spec.name}"))


def pair(source: Mapping[str, Any], tables: Sequence[Table], _: Path) -> Value:
    """Two rows of a table of conversions, compared example by example: the difference in points,
    and p, corrected for the pairs that the table compares."""
    table = table_of(source["pair"], tables)
    column = column_of(source, table)
    where = {"first": source["first"], "second": source["second"]}
    line = line_of(table.pairs.reset_index(), where, f"pairs of {table.spec.name}")
    found = PAIR.match(line[column])
    if found is None:
        raise UserError(f"{table.spec.name} does not compare {where} on {column}")
    fields = {"difference": float(found[1]), "p": float(found[2])}
    return Value(f"pairs of {table.spec.name}", fields)


def against(source: Mapping[str, Any], tables: Sequence[Table], _: Path) -> Value:
    """One row of a table of conversions against all others that are not the teacher, example by
    example: how many, how far below the row the nearest and the farthest are, the largest p."""
    table = table_of(source["against"], tables)
    column, row = column_of(source, table), source["row"]
    cell_of(table, row, column)
    records = table.column(column)["records"].dropna().to_dict()
    tested = paired_tests(records, lambda a, b: row in (a, b))
    below = [points if a == row else -points for a, _, points, _ in tested]
    fields = {
        "number": len(below),
        "nearest": min(below),
        "farthest": max(below),
        "p": max(p for *_, p in tested),
    }
    return Value(f"{table.spec.name}, all against {row}", fields)


def welch(source: Mapping[str, Any], tables: Sequence[Table], _: Path) -> Value:
    """Welch's two-sided test of two rows that were named before: difference, p, low and high of its
    95 % interval; not corrected. Each side is a row, or a list of rows that are one method; `mean`
    and `seeds` are those of the second side."""
    from scipy.special import stdtr, stdtrit

    what, a, b = _two_sides(source["welch"], source, tables)
    sides = [np.array([score for cell in side for score in cell["values"]]) for side in (a, b)]
    error = [float(side.var(ddof=1)) / len(side) for side in sides]
    total = sum(error)
    freedom = total**2 / sum(e**2 / (len(s) - 1) for e, s in zip(error, sides, strict=True))
    difference = float(sides[0].mean() - sides[1].mean())
    half = float(stdtrit(freedom, 1 - LEVEL / 2)) * math.sqrt(total)
    fields = {
        "difference": difference,
        "p": 2 * float(stdtr(freedom, -abs(difference) / math.sqrt(total))),
        "low": difference - half,
        "high": difference + half,
        "mean": float(sides[1].mean()),
        "seeds": len(sides[1]),
    }
    return Value(f"Welch's test in {what}", fields)


def paired(source: Mapping[str, Any], tables: Sequence[Table], _: Path) -> Value:
    """Two rows with the same seeds, seed by seed: the mean difference, low and high of Student's
    95 % interval; not corrected. Of a pair of rows alone, where `effect` averages several."""
    what, (a,), (b,) = _two_sides(source["paired"], source, tables)
    sides = [dict(zip(cell["seed"], cell["values"], strict=True)) for cell in (a, b)]
    if sides[0].keys() != sides[1].keys():
        raise UserError(f"{what}: the two rows of {dict(source)} have different seeds")
    differences = [score - sides[1][seed] for seed, score in sides[0].items()]
    mean, half = float(np.mean(differences)), half_width([differences])
    fields = {"difference": mean, "low": mean - half, "high": mean + half}
    return Value(f"pairs of seeds in {what}", fields)


def _two_sides(
    name: str, source: Mapping[str, Any], tables: Sequence[Table]
) -> tuple[str, list[pd.Series], list[pd.Series]]:
    table = table_of(name, tables)
    column = column_of(source, table)
    rows = [source[key] for key in ("row", "than")]
    a, b = (
        [cell_of(table, row, column) for row in ([side] if isinstance(side, str) else side)]
        for side in rows
    )
    if min(sum(cell["seeds"] for cell in side) for side in (a, b)) < 2:
        raise UserError(f"{name}: a test needs two seeds of each row: {dict(source)}")
    return name, a, b
