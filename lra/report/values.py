"""Where the numbers of claims come from (claims.py): a cell or a column of a table, a rule below
it, what others published, lines of a CSV or JSON Lines file, a count of records; differences.py
has effects and tests."""

from __future__ import annotations

import csv
import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lra.base.errors import UserError, nearest
from lra.data import hunt, rules
from lra.report.differences import against, effect, order, pair, paired, welch
from lra.report.published import published
from lra.report.specs import select, taken
from lra.report.table import Table, mark_of, on_dev_of, rounded, text_of
from lra.report.value import Value, cell_of, column_of, line_of, lines_of, table_of
from lra.results.frame import frame_of
from lra.results.record import UNKNOWN, first_finished, paths, read_all

KEPT = {rules.FILE: rules.read_scores, hunt.FILE: hunt.read_hunts}  # with a digest for each line
RECOVERY = "mean of ratios"  # of a table of conversions


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


def _cell(source: Mapping[str, Any], tables: Sequence[Table], _: Path) -> Value:
    """A cell: score, deviation, seeds, least, largest, p, mark, rule, costs, dead queries, what was
    published, the steps of its leaps."""
    table = table_of(source["cell"], tables)
    column, row = column_of(source, table), source["row"]
    cell = cell_of(table, row, column)
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
        "worse": bool(cell["worse"]),
        "floor": cell["floor"],
        "rule": cell.get("rule", math.nan),
        "gflops": cell.get("gflops"),
        "parameters": cell.get("parameters"),
        "state": cell.get("state"),
        "dead": cell.get("dead"),
        "published": cell.get("published"),
        "list": ", ".join(rounded(value, digits) for value in values),
    }
    fields |= _leaps([cell])
    if RECOVERY in table.rows:
        recovery = table.rows.loc[row]
        fields |= {"recovery": recovery[RECOVERY], "published_recovery": recovery["published"]}
    return Value(
        f"{table.spec.name}, {row}, {column}",
        fields,
        text_of(cell).removesuffix(f" ({cell['seeds']})"),
    )


def _cells(source: Mapping[str, Any], tables: Sequence[Table], _: Path) -> Value:
    """The rows of a column, all or some: how many, of how many methods, their means' least and
    largest, those of seeds, how many are marked, the steps of their leaps, how many methods have
    one."""
    table = table_of(source["cells"], tables)
    column = column_of(source, table)
    cells = table.column(column)
    cells = cells.loc[[r for r in cells.index if r not in source.get("without", [])]]
    cells = cells.loc[[*source["rows"]]] if "rows" in source else cells
    seeds = [score for values in cells["values"] for score in values]
    began = [_leaps([cell])["leapt"] > 0 for _, cell in cells.iterrows()]
    fields = {
        "number": len(cells),
        "methods": cells["attention"].nunique(),
        "methods_leapt": cells.loc[began, "attention"].nunique(),
        "least": cells["score"].min(),
        "largest": cells["score"].max(),
        "least_seed": min(seeds),
        "largest_seed": max(seeds),
        "runs": len(seeds),
        "worse": int(cells["worse"].sum()),
        "ruled": int((cells.apply(mark_of, axis=1) == "∅").sum()),
        "fewest_seeds": int(cells["seeds"].min()),
        "most_seeds": int(cells["seeds"].max()),
        "least_deviation": cells["deviation"].min(),
        "largest_deviation": cells["deviation"].max(),
    }
    if "dead" in cells:
        fields |= {"least_dead": cells["dead"].min(), "largest_dead": cells["dead"].max()}
    fields |= _leaps([cell for _, cell in cells.iterrows()])
    return Value(f"{table.spec.name}, {column}", fields)


def _leaps(cells: Sequence[pd.Series]) -> dict[str, Any]:
    """How many runs came a third of the way from the constant answer to the best rule, on dev; the
    first and the last step at which one did; `leaps` says it in words; how many of them came two
    thirds of the way, how many never did, and how many steps the slowest of those that did took."""
    thirds, later = (
        [text for cell in cells for text in str(cell.get(name, "")).split()]
        for name in ("steps_to_third", "steps_to_two_thirds")
    )
    steps = [int(text) for text in thirds if text != "never"]
    ends = dict.fromkeys((min(steps), max(steps))) if steps else ()
    began = [(a, b) for a, b in zip(thirds, later, strict=True) if a != "never"]
    took = [int(b) - int(a) for a, b in began if b != "never"]
    return {
        "leapt": len(steps),
        "arrived": len(took),
        "unfinished": len(began) - len(took),
        "stayed": thirds.count("never"),
        "first_leap": min(steps, default=math.nan),
        "last_leap": max(steps, default=math.nan),
        "leaps": " to ".join(f"{step:,}" for step in ends) or "none",
        "slowest": max(took, default=math.nan),
    }


def _rule(source: Mapping[str, Any], tables: Sequence[Table], _: Path) -> Value:
    """The score of a rule, its name, its score on dev; without `name` the best on dev."""
    table = table_of(source["rule"], tables)
    column = column_of(source, table)
    rules, name = table.rules, source.get("name", table.best_rule(column))
    if name is None:
        raise UserError(
            f"{table.spec.name} has no best rule on {column}: fit all of them (lra data baseline)"
        )
    if name not in rules.index:
        raise UserError(f"{table.spec.name} has no rule '{name}'{nearest(name, rules.index)}")
    score = float(rules.loc[name, column])
    on_dev = float(rules.loc[name, on_dev_of(column)])
    fields = {"score": score, "name": name, "dev": on_dev}
    return Value(f"{table.spec.name}, {name}", fields, rounded(score, 1))


def _published(source: Mapping[str, Any], _: Sequence[Table], __: Path) -> Value:
    """What others published on a task, of one `row` or of all but those of `without` and of the
    tables of `outside`: how many scores, the least, the largest."""
    task = source["published"]
    scores = [
        row.values[table.tasks.index(task)]
        for name, table in published().tables.items()
        for method, row in table.rows.items()
        if task in table.tasks
        and name not in source.get("outside", [])
        and method not in source.get("without", [])
        and source.get("row", method) == method
    ]
    found = [score for score in scores if score is not None]
    if not found:
        raise UserError(f"nothing is published of {dict(source)}")
    fields = {"number": len(found), "least": min(found), "largest": max(found)}
    return Value(f"published scores on {task}", fields)


def _file(source: Mapping[str, Any], _: Sequence[Table], results: Path) -> Value:
    """A line of a file in the results folder; fields of a CSV are numbers where they can be, those
    of a JSON line are reached by `field: rules > bag`."""
    frame, path = _read(results, source["file"])
    fields = line_of(frame, source["where"], str(path))
    for part in str(source["field"]).split(" > ") if "field" in source else ():
        fields = fields[part]
    return Value(str(path), {key: _number(value) for key, value in fields.items()})


def _lines(source: Mapping[str, Any], _: Sequence[Table], results: Path) -> Value:
    """The numbers of a `field` in all lines of such a file that meet `where`: how many, the least,
    the largest."""
    frame, path = _read(results, source["lines"])
    found = lines_of(frame, source["where"], str(path))[source["field"]].astype(float)
    if found.empty:
        raise UserError(f"{path}: no line has {source['where']}")
    fields = {"number": len(found), "least": found.min(), "largest": found.max()}
    return Value(str(path), fields)


def _read(results: Path, name: str) -> tuple[pd.DataFrame, Path]:
    path = results / name
    if not path.resolve().is_relative_to(results.resolve()) or not path.is_file():
        raise UserError(f"a claim names {path}, but there is no such file in {results}")
    if path.name in KEPT:
        return pd.DataFrame(KEPT[path.name](path)), path
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        return pd.DataFrame([*csv.DictReader(text.splitlines())]), path
    return pd.DataFrame([json.loads(line) for line in text.splitlines() if line]), path


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def _records(source: Mapping[str, Any], tables: Sequence[Table], results: Path) -> Value:
    """How many runs there are, of those that meet `where` (as in tables.yaml), without answers and
    without a hash of their code; the mean, the least and the largest of their scores, and the
    largest at the last checkpoint."""
    place = results / "records"
    runs = _all_runs(place, tuple(path.stat().st_mtime_ns for path in paths(place)))
    runs = taken(runs, place, source["records"])
    runs = frame_of(first_finished(runs["record"], same=4))
    runs = select(runs, source.get("where", {}))
    last = [record.get("stages.last.score") for record in runs["record"]]
    answers = [record.get("answers.packed") or record.get("labels") for record in runs["record"]]
    fields = {
        "number": len(runs),
        "without_answers": sum(not found for found in answers),
        "without_code": int((runs["code"] == UNKNOWN).sum()),
        "attentions": runs["attention"].nunique(),
        "mean": runs["score"].mean(),
        "least": runs["score"].min(),
        "largest": runs["score"].max(),
        "largest_last": max((score for score in last if score is not None), default=math.nan),
    }
    return Value(f"records {source['records']}".strip(), fields, f"{len(runs):,}")


@functools.lru_cache(maxsize=1)
def _all_runs(place: Path, times: tuple[int, ...]) -> pd.DataFrame:
    """The runs below a folder, read again where a file has changed since."""
    return frame_of(read_all([place]))


KINDS: dict[str, Callable[[Mapping[str, Any], Sequence[Table], Path], Value]] = {
    "cell": _cell,
    "cells": _cells,
    "rule": _rule,
    "published": _published,
    "effect": effect,
    "order": order,
    "pair": pair,
    "against": against,
    "paired": paired,
    "welch": welch,
    "file": _file,
    "lines": _lines,
    "records": _records,
}
