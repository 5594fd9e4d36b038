"""What a page of results may call (pages.py), of one place: a cell or a column of a table, a rule
below it, what others published, lines of a file, records. Calls that compare rows are in
between.py."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lra.base.code import UNKNOWN
from lra.base.errors import UserError, nearest
from lra.report.cell import Cell, all_of, each, rounded
from lra.report.published import published as read_published
from lra.report.rungs import EXAMPLES, RULE, WORDS
from lra.report.specs import select, taken
from lra.report.study import Fact, Study
from lra.report.table import Table, on_dev_of
from lra.results.record import first_finished

RECOVERY = "mean of ratios"  # of a table of conversions
OF_CELL = ("p", "floor", "rule", "gflops", "parameters", "state", "dead", "published")


def cell(study: Study, table: str, row: str, column: str = "") -> Fact:
    """One cell: score, deviation, seeds, the least and the largest, a list of all seeds, its mark,
    p, the floor and the best rule, costs, what was published, the steps of its leaps."""
    found, column, cell = study.cell(table, row, column)
    text = cell.text.removesuffix(f" ({cell.seeds})")
    fields = {
        "score": cell.score,
        "deviation": cell.deviation,
        "seeds": cell.seeds,
        "least": min(cell.values),
        "largest": max(cell.values),
        "list": ", ".join(rounded(value, cell.digits) for value in cell.values),
        "mark": cell.mark,
        "marked": f"{text} {cell.mark}".strip(),
        "best": cell.best,
        "worse": cell.worse,
        **{name: getattr(cell, name) for name in OF_CELL},
    }
    fields |= leaps_of([cell])
    if RECOVERY in found.rows:
        recovery = found.rows.loc[row]
        fields |= {"recovery": recovery[RECOVERY], "published_recovery": recovery["published"]}
    return Fact(f"{table}, {row}, {column}", fields, text)


def cells(
    study: Study,
    table: str,
    column: str = "",
    rows: Sequence[str] = (),
    without: Sequence[str] = (),
    rung: str = "",
) -> Fact:
    """The rows of a column, all or some: their number and that of their methods, the least and the
    largest of their means and of their seeds, how many are marked, the steps of their leaps. With a
    `rung` their accuracy on the examples of which so much must be read, or at so early a place,
    and that of two rules."""
    found, column = study.column(table, column)
    for row in (*rows, *without):
        study.cell(table, row, column)
    if rung:
        return _on_rung(found, rung, rows, without)
    cells = found.column(column)
    cells = cells.loc[[*rows]] if rows else cells.drop(index=[*without])
    seeds = [score for values in cells["values"] for score in values]
    began = [leaps_of([cell])["leapt"] > 0 for cell in each(cells)]
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
        "ruled": int((all_of(cells, "mark") == "∅").sum()),
        "fewest_seeds": int(cells["seeds"].min()),
        "most_seeds": int(cells["seeds"].max()),
        "least_deviation": cells["deviation"].min(),
        "largest_deviation": cells["deviation"].max(),
    }
    if "dead" in cells:
        fields |= {"least_dead": cells["dead"].min(), "largest_dead": cells["dead"].max()}
    fields |= leaps_of([*each(cells)])
    return Fact(f"{table}, {column}", fields)


def _on_rung(
    table: Table, rung: str, rows: Sequence[str] = (), without: Sequence[str] = ()
) -> Fact:
    name = table.spec.name
    if rung not in table.rungs:
        raise UserError(
            f"{name} tells no examples apart by '{rung}'{nearest(rung, table.rungs.columns)}"
        )
    line = table.rungs[rung]
    taken = [row for row in rows or table.rows.index if row in line.index and row not in without]
    fields = {
        "number": len(taken),
        "examples": int(line[EXAMPLES]),
        "least": line[taken].min(),
        "largest": line[taken].max(),
    }
    rules = {"constant": WORDS["constant"], "first_tokens": f"{RULE}first tokens"}
    fields |= {field: line[rule] for field, rule in rules.items() if rule in line}
    return Fact(f"{name}, {rung}", fields)


def leaps_of(cells: Sequence[Cell]) -> dict[str, Any]:
    """How many runs came a third of the way from the constant answer to the best rule, on dev; the
    first and the last step at which one did; `leaps` says it in words; how many of them came two
    thirds of the way, how many never did, and how many steps the slowest of those that did took."""
    thirds, later = (
        [text for cell in cells for text in getattr(cell, name).split()]
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


def rule(study: Study, table: str, name: str = "", column: str = "") -> Fact:
    """A rule below a table: its score, its name, its score on dev; without a name the best."""
    found, column = study.column(table, column)
    chosen = name or found.best_rule(column)
    if chosen is None:
        raise UserError(
            f"{table} has no best rule on {column}: fit all of them (lra data baseline)"
        )
    if chosen not in found.rules.index:
        raise UserError(f"{table} has no rule '{chosen}'{nearest(chosen, found.rules.index)}")
    line = found.rules.loc[chosen]
    score = float(line[column])
    fields = {"score": score, "name": chosen, "dev": float(line[on_dev_of(column)])}
    return Fact(f"{table}, {chosen}", fields, rounded(score, 1))


def published(
    study: Study, task: str, row: str = "", without: Sequence[str] = (), outside: Sequence[str] = ()
) -> Fact:
    """What others published on a task, of one row, or of all but those of `without` and of the
    tables of `outside`: how many scores, the least, the largest."""
    found = [
        score
        for name, table in read_published().tables.items()
        for method, line in table.rows.items()
        if task in table.tasks and name not in outside and method not in without
        if not row or row == method
        if (score := line.values[table.tasks.index(task)]) is not None
    ]
    if not found:
        raise UserError(f"nothing is published of {row or 'any row'} on {task}")
    fields = {"number": len(found), "least": min(found), "largest": max(found)}
    return Fact(f"published scores on {task}", fields)


def lines(study: Study, file: str, field: str, **where: Any) -> Fact:
    """The numbers of a field in the lines of a CSV or JSON Lines file that meet the conditions: how
    many, the least, the largest. `rules > bag` is a field within a field."""
    found = study.lines(file, where)
    name, *inner = field.split(" > ")
    if name not in found:
        raise UserError(f"{file} has no '{name}'{nearest(name, [*found])}")
    try:
        values = [float(_within(value, inner)) for value in found[name]]
    except (TypeError, ValueError, KeyError) as error:
        raise UserError(f"{file}: '{field}' is no number in every line") from error
    return Fact(file, {"number": len(values), "least": min(values), "largest": max(values)})


def _within(value: Any, names: Sequence[str]) -> Any:
    for name in names:
        value = value[name]
    return value


def records(study: Study, name: str = "", where: Mapping[str, Any] | None = None) -> Fact:
    """How many runs a file or folder of records has, of those that meet `where` (as in
    tables.yaml), without answers and without a hash of their code; the mean, the least and the
    largest of their scores, and the largest at the last checkpoint."""
    runs = taken(study.every_run, study.folder / "records", name)
    first = {id(record) for record in first_finished(runs["record"], same=4)}
    runs = select(runs[runs["record"].map(id).isin(first)], where or {})
    if runs.empty:
        raise UserError(f"no run of records/{name} is of {where}")
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
    return Fact(f"records {name}".strip(), fields, f"{len(runs):,}")
