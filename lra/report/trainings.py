"""Tables of training runs. Rows are attentions, named by the options in which runs of one attention
differ; columns are tasks, or the values of a setting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lra.base.errors import UserError, one_line
from lra.data.registry import BUILTIN
from lra.report.cell import Cell, Role, aggregate, all_of, columns_of, each
from lra.report.columns import PARTS, USES, Use, used_as
from lra.report.effects import effects
from lra.report.notes import compute_class, training_notes
from lra.report.rows import NAMES, rows_and_scores, with_published
from lra.report.rules import read_rules
from lra.report.rungs import rungs_of
from lra.report.specs import TableSpec
from lra.report.table import (
    Table,
    best_rule,
    cells_of,
    differing,
    is_option,
    on_dev_of,
    pairs_of,
    refuse_mixtures,
    short_name,
    sortable,
)
from lra.results.frame import options_of, usual_of
from lra.results.record import first_finished

FIVE = ("listops", "text", "retrieval", "image", "pathfinder")  # the tasks of an average
AVERAGE = "average"  # a column of rows
SPELT = 3  # where more options than these differ, rows are named by those with unusual values

RATE = "protocol.recipe.lr"
STEPS_TO = {"steps_to_third": 1 / 3, "steps_to_two_thirds": 2 / 3}  # of the way to the best rule


def build(
    spec: TableSpec, taken: pd.DataFrame, *folders: Path, known: pd.DataFrame | None = None
) -> Table:
    """A table of these training runs, with the rules for their data that rules.jsonl in these
    folders has; the first one that has some counts. `known` are all runs, if there are others."""
    runs = _shown(spec, taken)
    absent = runs.where(runs.notna(), "absent")  # a lack is a value too
    absent.loc[runs["tune.name"] != "none", RATE] = None  # which such a row has of its own
    refuse_mixtures(spec.name, absent, *compared(runs, spec.vary, spec.choose))

    # Rows, columns and cells.
    runs = _named(spec, runs)
    columns = _columns(runs, spec.columns)
    cells = _cells(spec, runs, taken if known is None else known)
    lines = lines_for(runs, columns, folders)
    rules = rules_for(lines, columns)
    missing = {column: line["missing"] for column, line in lines.items() if line.get("missing")}
    if not rules.empty:
        complete = [column for column in columns if column not in missing]
        best = {column: _score_of_best_rule(rules, cells, column) for column in complete}
        of_cells = cells.index.get_level_values("column")
        cells["rule"] = of_cells.map(pd.Series(best, dtype=float))
        cells["incomplete"] = of_cells.isin([*missing])
        for name, share in STEPS_TO.items():
            cells[name] = [_steps_to(cell, share) for cell in each(cells)]

    # An average is over all five tasks; over the values of a setting there is none.
    axis = short_name(spec.columns)
    summaries = () if axis or {*columns}.isdisjoint(FIVE) else (AVERAGE,)
    rows = _rows(cells, columns if axis else FIVE)
    if summaries:  # none of a row with seeds of two kinds
        rows[AVERAGE] = rows["place"].mask(all_of(cells, "mixed").groupby("row").any())
    table = Table(
        spec=spec,
        columns=columns,
        rows=rows.loc[_order(rows, cells, by_place=len(columns) > 1 and bool(summaries or axis))],
        cells=cells,
        runs=runs,
        taken=taken,
        summaries=summaries,
        costs=True,
        rules=rules,
        missing=missing,
    )
    if spec.effects:
        settings = [setting for setting in (*spec.vary, spec.columns) if setting]
        mixed = cells.index[all_of(cells, "mixed")]
        kept = runs[~pd.MultiIndex.from_frame(runs[["row", "column"]]).isin(mixed)]
        table.effects = effects(kept, settings, spec.together)
    if spec.rungs:
        table.rungs, table.rungs_of_runs = rungs_of(table, lines)
    table.notes = [*training_notes(table)]
    return table


def _steps_to(cell: Cell, share: float) -> str:
    """The first step at which each run's score on dev had come so far from the constant answer to
    the best rule, or `never`: a run that leaps does so between two such steps."""
    if pd.isna(cell.rule) or pd.isna(cell.floor):
        return ""
    score = cell.floor + share * (cell.rule - cell.floor)
    steps = (record.first_step(score) for record in cell.records)
    return " ".join("never" if step is None else str(step) for step in steps)


def _score_of_best_rule(rules: pd.DataFrame, cells: pd.DataFrame, column: str) -> float:
    higher = cells.xs(column, level="column")["higher_is_better"].iloc[0]
    best = best_rule(rules, column, higher)
    return math.nan if best is None else rules.loc[best, column]


def _shown(spec: TableSpec, taken: pd.DataFrame) -> pd.DataFrame:
    """The runs that are shown, with their column: the first to finish of equal ones, at the value
    of `choose` that is best on dev."""
    for key in filter(None, (spec.choose, spec.columns)):
        if key not in taken or taken[key].isna().all():
            raise UserError(f"table '{spec.name}': no record has the setting '{key}'")
    first = {record.run for record in first_finished(taken["record"])}
    runs = taken[taken["run"].isin(first)]
    if spec.choose:
        runs = best_on_dev(runs, spec.choose)
    if axis := short_name(spec.columns):
        return runs.assign(column=f"{axis}=" + runs[spec.columns].map(str))
    return runs.assign(column=runs["task"])


def _cells(spec: TableSpec, runs: pd.DataFrame, known: pd.DataFrame) -> pd.DataFrame:
    cells = with_published(cells_of(runs, known=known), spec.published)
    cells = cells.join(aggregate(runs, Role.condition))
    cells["gflops"] = cells["flops"] / 1e9
    cells["compute"] = [compute_class(record["compute"]) for record in cells["record"]]
    # Times are shown where all runs of a column had one machine.
    machines = (
        runs.groupby("column")[used_as(Use.machine)].agg(lambda s: s.map(str).nunique()).max(axis=1)
    )
    untimed = machines.index[(machines > 1) | (not spec.speed)]
    cells.loc[cells.index.isin(untimed, level="column"), columns_of(Role.time)] = None
    return cells


def _rows(cells: pd.DataFrame, averaged: Sequence[str]) -> pd.DataFrame:
    """A line per row, with the averages of its scores and of published ones over these columns, if
    it has all."""
    rows, scores = rows_and_scores(cells, averaged)
    rows["place"] = scores.mean(axis=1, skipna=False)  # in the order
    printed = cells["published"].astype(float).unstack("column").reindex(columns=averaged)
    rows["published"] = printed.mean(axis=1, skipna=False)
    return rows


def _order(rows: pd.DataFrame, cells: pd.DataFrame, *, by_place: bool) -> Sequence[str]:
    """Rows of one attention by their options; several by their average over the columns or, where
    that is not asked for, by score."""
    if rows["attention"].nunique() == 1:
        return sorted(rows.index, key=lambda row: [*map(sortable, rows["options"][row].values())])
    means = rows["place"] if by_place else (cells["score"] * cells["sign"]).groupby("row").mean()
    return means.sort_index().sort_values(ascending=False, kind="stable").index


def best_on_dev(runs: pd.DataFrame, key: str) -> pd.DataFrame:
    """The runs with the value of this setting that has the best mean score on dev over seeds, among
    runs that differ in nothing else. A value with fewer seeds than another is not taken: its other
    runs diverged, which leave no record. The column `tried` has the values it was taken from."""
    settings = [c for c in runs if c.split(".")[0] in PARTS and c != key]
    facts = (runs[name].map(str) for name in (*settings, "data.fingerprint", "code"))
    kind = pd.Series(["|".join(of_run) for of_run in zip(*facts, strict=True)], runs.index)
    sign = runs["metric.higher_is_better"].map({True: 1, False: -1})
    values = runs.assign(kind=kind, dev=sign * runs["dev.score"].astype(float))
    values = values.groupby(["kind", key])
    tried = values.agg(seeds=("seed", "nunique"), dev=("dev", "mean")).reset_index()
    ranked = tried.sort_values(["seeds", "dev"], ascending=False, kind="stable")
    best = ranked.drop_duplicates("kind").set_index("kind")[key]
    names = tried.groupby("kind")[key].agg(lambda column: str(sorted(column, key=sortable)))
    return runs.assign(tried=kind.map(names))[runs[key] == kind.map(best)]


def compared(
    runs: pd.DataFrame, vary: Sequence[str] = (), choose: str = ""
) -> tuple[list[str], list[str]]:
    """The facts that all runs of a table share, and those that all runs of a column share."""
    # The options of an attention move no budget.
    moving = [setting for setting in vary if not is_option(setting)]
    ignored = {choose, *vary, *(used_as(Use.budget) if moving else ())}
    settings = [c for c in runs if c.startswith(("model.", "protocol.")) and c not in USES]
    of_table, of_column = (
        [f for f in facts if f in runs and f not in ignored]
        for facts in (used_as(Use.table), [*used_as(Use.column, Use.budget), *settings])
    )
    return of_table, of_column


def lines_for(
    runs: pd.DataFrame, columns: Sequence[str], folders: Sequence[Path]
) -> dict[str, dict[str, Any]]:
    """What the files of rules have of the data of each column; of columns without rules nothing."""
    lines_of_files = [line for folder in reversed(folders) for line in read_rules(folder)]
    by_data = {line["fingerprint"]: line for line in lines_of_files}
    data_of = runs.groupby("column")["fingerprint"].first()
    return {c: by_data[data_of[c]] for c in columns if data_of[c] in by_data}


def rules_for(lines_of: Mapping[str, Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """The scores of rules on the data of each column, what each rule reads, and whether it is a
    bound of what any method can score."""
    lines: dict[str, dict[str, Any]] = {}
    for column, scored in lines_of.items():
        for name, rule in scored["rules"].items():
            names = [*columns, *map(on_dev_of, columns)]
            line = lines.setdefault(name, dict.fromkeys(names, math.nan))
            line |= {
                column: rule["test"],
                on_dev_of(column): rule["val"],
                "reads": rule["reads"],
                "bound": rule.get("bound", False),
            }
    return pd.DataFrame.from_dict(lines, orient="index")


def _columns(runs: pd.DataFrame, setting: str) -> list[str]:
    if setting:
        first = runs.drop_duplicates("column").set_index("column")[setting]
        return sorted(first.index, key=lambda name: sortable(first[name]))
    place = {name: i for i, name in enumerate(BUILTIN)}  # others follow, by name
    return sorted(runs["column"].unique(), key=lambda task: (place.get(task, 99), task))


def _named(spec: TableSpec, runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with the label of their row, and the options that it stands for."""
    names = {}
    asked = {short_name(setting) for setting in spec.vary}
    always = used_as(Use.row)
    for name, of_method in runs.groupby("attention", sort=False):
        keys = _naming(spec, of_method)
        usual = usual_of(of_method["record"].iloc[0])
        columns = [c for c in dict.fromkeys([*keys, *always]) if c in runs]
        for i, run in of_method[columns].to_dict("index").items():
            options = {short_name(k): run.get(k) for k in keys}
            options |= {short_name(k): run[k] for k in always if run[k] != "none"}
            shown = {
                k: v
                for k, v in options.items()
                if len(options) <= SPELT or k in asked or str(v) != str(usual.get(k))
            }
            names[i] = one_line(f"{name} {pairs_of(shown)}"), name, options
    return runs.join(pd.DataFrame.from_dict(names, orient="index", columns=NAMES))


def _naming(spec: TableSpec, runs: pd.DataFrame) -> list[str]:
    """The settings that name the rows of one attention: those in which its runs of a column differ,
    options that differ from what `attention=<name>` sets, and those that the table varies."""
    records = runs["record"]
    options = [
        f"attention.{key}" for key in dict.fromkeys(itertools.chain(*map(options_of, records)))
    ]
    keys = differing(runs, [*options, "code_of_training"])
    keys = ["code" if key == "code_of_training" else key for key in keys]
    keys += differing(runs[runs["pretrain.name"] != "none"], ["code"])
    usual = pd.DataFrame([*map(usual_of, records)], runs.index).add_prefix("attention.").map(str)
    keys += [o for o in options if o in usual and (usual[o] != runs[o].map(str)).any()]
    varied = [key for key in spec.vary if key in options or not is_option(key)]
    return list(dict.fromkeys([*keys, *varied]))
