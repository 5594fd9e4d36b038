"""Where the numbers of claims come from (claims.py): a cell or a column of a table, a rule below
it, an effect, a test between rows, a line of a CSV or JSON Lines file, or a count of records."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lra.base.errors import UserError, nearest
from lra.report.specs import select
from lra.report.table import Table, best_rule, mark_of, rounded, text_of


@dataclass(frozen=True)
class Value:
    """Fields by name, and the text that a bare name stands for."""

    where: str
    fields: Mapping[str, Any]
    text: str = ""

    def field(self, name: str) -> Any:
        if name not in self.fields:
            raise AttributeError(f"{self.where} has no {name!r}{nearest(name, self.fields)}")
        return self.fields[name]

    def __str__(self) -> str:
        if not self.text:
            raise AttributeError(f"{self.where} has several fields: {', '.join(self.fields)}")
        return self.text


def value_of(source: Mapping[str, Any], tables: Sequence[Table], results: Path) -> Value:
    """Look a source up: the key that KINDS has says what it is."""
    kinds = [key for key in source if key in KINDS]
    if len(kinds) != 1:
        raise UserError(f"a claim's value has one of {', '.join(KINDS)}, not {[*source]}")
    try:
        return KINDS[kinds[0]](source, tables, results)
    except KeyError as error:
        raise UserError(f"a claim's value lacks {error}: {dict(source)}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"a claim's value cannot be found ({error}): {dict(source)}") from error


def _table(name: str, tables: Sequence[Table]) -> Table:
    by_name = {table.spec.name: table for table in tables}
    if name not in by_name:
        raise UserError(f"a claim names the table '{name}'{nearest(name, by_name)}")
    return by_name[name]


def _column(source: Mapping[str, Any], table: Table) -> str:
    """The column of a source; of a table that has one, this."""
    name = source["column"] if len(table.columns) > 1 or "column" in source else table.columns[0]
    if name not in table.columns:
        raise UserError(f"{table.spec.name} has no column '{name}'{nearest(name, table.columns)}")
    return str(name)


def _cell(source: Mapping[str, Any], tables: Sequence[Table], _: Path) -> Value:
    """A cell: score, deviation, seeds, least, largest, p, mark, rule, state, parameters."""
    table = _table(source["cell"], tables)
    column, row = _column(source, table), source["row"]
    if (row, column) not in table.cells.index:
        raise UserError(f"{table.spec.name} has no row '{row}'{nearest(row, table.rows.index)}")
    cell = table.cells.loc[(row, column)]
    values, digits = [*cell["values"]], cell["digits"]
    fields = {
        "score": cell["score"],
        "deviation": cell["deviation"],
        "seeds": int(cell["seeds"]),
        "least": min(values),
        "largest": max(values),
        "p": cell["p"],
        "mark": mark_of(cell),
        "best": bool(cell["best"]),
        "floor": cell["floor"],
        "rule": cell.get("rule", math.nan),
        "gflops": cell.get("gflops"),
        "parameters": cell.get("parameters"),
        "state": cell.get("state"),
        "list": ", ".join(rounded(value, digits) for value in values),
    }
    return Value(f"{table.spec.name}, {row}, {column}", fields, text_of(cell).rpartition(" (")[0])


def _cells(source: Mapping[str, Any], tables: Sequence[Table], _: Path) -> Value:
    """The rows of a column, all or some: how many, their means' least and largest, those of seeds,
    how many are marked."""
    table = _table(source["cells"], tables)
    column = _column(source, table)
    cells = table.column(column)
    cells = cells.loc[[r for r in cells.index if r not in source.get("without", [])]]
    cells = cells.loc[[*source["rows"]]] if "rows" in source else cells
    seeds = [score for values in cells["values"] for score in values]
    fields = {
        "number": len(cells),
        "least": cells["score"].min(),
        "largest": cells["score"].max(),
        "least_seed": min(seeds),
        "largest_seed": max(seeds),
        "runs": len(seeds),
        "worse": int(cells["worse"].sum()),
        "ruled": int((cells.apply(mark_of, axis=1) == "∅").sum()),
        "fewest_seeds": int(cells["seeds"].min()),
        "most_seeds": int(cells["seeds"].max()),
    }
    return Value(f"{table.spec.name}, {column}", fields)


def _rule(source: Mapping[str, Any], tables: Sequence[Table], _: Path) -> Value:
    """The score of a rule; without `name` that of the best on dev."""
    table = _table(source["rule"], tables)
    column = _column(source, table)
    rules, higher = table.rules, table.column(column)["higher_is_better"].iloc[0]
    name = source.get("name", best_rule(rules, column, higher))
    if name not in rules.index:
        raise UserError(f"{table.spec.name} has no rule '{name}'{nearest(name, rules.index)}")
    score = float(rules.loc[name, column])
    return Value(f"{table.spec.name}, {name}", {"score": score, "name": name}, rounded(score, 1))


def _line(frame: pd.DataFrame, where: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The one line of a frame that meets all conditions."""
    for key, value in where.items():
        if key not in frame:
            raise UserError(f"{what} has no {key!r}{nearest(key, [*frame])}")
        frame = frame[frame[key].map(str) == str(value)]
    if len(frame) != 1:
        raise UserError(f"{what}: {len(frame)} lines have {dict(where)}, not one")
    return {str(key): value for key, value in frame.iloc[0].items()}


def _effect(source: Mapping[str, Any], tables: Sequence[Table], _: Path) -> Value:
    """A line of a table's effects: mean, low and high of its interval, pairs, runs."""
    table = _table(source["effect"], tables)
    where = {key: value for key, value in source.items() if key != "effect"}
    fields = _line(table.effects, where, f"effects of {table.spec.name}")
    text = f"{fields['mean']:+.1f} ({fields['low']:.1f} to {fields['high']:.1f})"
    return Value(f"effects of {table.spec.name}", fields, text)


def _order(source: Mapping[str, Any], tables: Sequence[Table], _: Path) -> Value:
    """A rank correlation with another table: correlation, low, high, methods."""
    table = _table(source["order"], tables)
    where = {key: value for key, value in source.items() if key != "order"}
    return Value("order", _line(table.agreements, where, f"orders of {table.spec.name}"))


def _file(source: Mapping[str, Any], _: Sequence[Table], results: Path) -> Value:
    """A line of a file in the results folder; fields of a CSV are numbers where they can be, those
    of a JSON line are reached by `field: rules.bag.test`."""
    path = results / source["file"]
    if not path.resolve().is_relative_to(results.resolve()) or not path.is_file():
        raise UserError(f"a claim names {path}, which is no file of {results}")
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        lines = [*csv.DictReader(text.splitlines())]
    else:
        lines = [json.loads(line) for line in text.splitlines() if line]
    fields = _line(pd.DataFrame(lines), source["where"], str(path))
    for part in str(source["field"]).split(" > ") if "field" in source else ():
        fields = fields[part]
    return Value(str(path), {key: _number(value) for key, value in fields.items()})


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def _records(source: Mapping[str, Any], tables: Sequence[Table], results: Path) -> Value:
    """How many runs there are, of those that meet `where` (as in tables.yaml), without answers, and
    without a hash of their code."""
    from lra.report.specs import below
    from lra.results.frame import frame_of
    from lra.results.record import load_records

    place = results / "records"
    runs = frame_of(load_records([place]))
    runs = runs[below(runs, place / source["records"])] if source["records"] else runs
    runs = select(runs, source.get("where", {}))
    answers = [record.get("answers.packed") or record.get("labels") for record in runs["record"]]
    fields = {
        "number": len(runs),
        "without_answers": sum(not found for found in answers),
        "without_code": int(runs["code"].isna().sum()),
    }
    return Value(f"records {source['records']}".strip(), fields, f"{len(runs):,}")


KINDS: dict[str, Callable[[Mapping[str, Any], Sequence[Table], Path], Value]] = {
    "cell": _cell,
    "cells": _cells,
    "rule": _rule,
    "effect": _effect,
    "order": _order,
    "file": _file,
    "records": _records,
}
