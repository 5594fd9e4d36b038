"""Tables of training runs: rows are attentions, named by the options in which runs of one attention
differ; columns are tasks, or the values of a setting."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lra import data
from lra.base.config import UserError
from lra.report import published
from lra.report.effects import agreements, effects
from lra.report.notes import notes
from lra.report.specs import TableSpec, select
from lra.report.table import (
    Table,
    cells_of,
    differing,
    one_line,
    refuse_mixtures,
    short_name,
    sortable,
)
from lra.results.frame import options_of, usual_of
from lra.results.record import first_attempts
from lra.runs.schema import TRAINING

FIVE = ("listops", "text", "retrieval", "image", "pathfinder")  # the tasks of an average
AVERAGE = "average"
NEVER = object()
SPELT = 3  # where more options than these differ, rows are named by those with unusual values

# Facts that all runs of a table share, and those that its runs in one column share; of the latter
# the fingerprint covers every option of the data, and `model.` and `protocol.` are all settings
# with such names. A budget that an attention measures follows from what is varied.
OF_TABLE = ("protocol.name", "protocol.version", "model", "budget", "precision",
            "compute.budget.reference", "compute.budget.tolerance.parameters",
            "compute.budget.tolerance.flops")  # fmt: skip
FOLLOW = ("compute.budget.parameters", "compute.budget.flops")
OF_COLUMN = ("data.source", "data.fingerprint", "test.select", "test.examples", *FOLLOW)
PARTS = ("attention", "model", "protocol", "task", "pretrain", "budget", "precision", "processes")
NOT_NONE = ("processes", "pretrain.name")  # name a row wherever they are not "none"
MACHINE = ("machine.device", "machine.threads", "machine.processes")  # of comparable speeds


def build_all(specs: Sequence[TableSpec], runs: pd.DataFrame, folder: Path) -> list[Table]:
    """The tables for which there are runs; `folder` is the one that all of them come from."""
    tables: dict[str, Table] = {}
    for spec in specs:
        taken = selected(spec, runs, folder)
        rows = taken.groupby("task")["identity"].transform("nunique")
        if not (taken := taken[rows >= spec.at_least]).empty:
            tables[spec.name] = build(spec, taken)
    for spec in specs:
        if spec.name in tables and spec.against in tables:
            orders = agreements(tables[spec.name], tables[spec.against])
            tables[spec.name] = dataclasses.replace(tables[spec.name], agreements=orders)
    return list(tables.values())


def selected(spec: TableSpec, runs: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The runs that an entry of tables.yaml takes from the records of a folder."""
    place = folder / spec.records
    there = [p for p in runs["path"].unique() if Path(p).with_suffix("").is_relative_to(place)]
    training = runs[runs["path"].isin(there) & (runs["kind"] == TRAINING)]
    finished = pd.to_datetime(training["times.finished"], utc=True, format="ISO8601")
    training = training.loc[finished.sort_values(kind="stable").index].drop_duplicates("run")
    order = ["task", "protocol", "model", "attention", "run"]
    return select(training.sort_values(order), spec.where)


def build(spec: TableSpec, runs: pd.DataFrame) -> Table:
    """A table of these runs; UserError if they cannot be compared."""
    for key in filter(None, (spec.choose, spec.columns)):
        if key not in runs or runs[key].isna().all():
            raise UserError(f"table '{spec.name}': no record has the setting '{key}'")
    is_first = runs["run"].isin({record.run for record in first_attempts(runs["record"])[0]})
    repeated = runs[~is_first]
    runs, unchosen = _chosen(runs[is_first], spec.choose)
    axis = short_name(spec.columns)
    column = f"{axis}=" + runs[spec.columns].map(str) if axis else runs["task"]
    runs = runs.assign(column=column)
    ignored = {*may_differ(spec.vary), spec.choose}
    of_table, of_column = ([f for f in facts if f not in ignored] for facts in compared(runs))
    refuse_mixtures(spec.name, runs, of_table, of_column, remedy="narrow it with `where`")

    runs, options = _named(spec, runs)
    columns = _columns(runs, spec.columns)
    averaged = columns if spec.columns else FIVE
    cells = cells_of(runs)
    cells[["published", "source"]] = [
        published.published_score(spec.published, r.attention, r["task"], r["settings.attention"])
        for r in cells["record"]
    ]
    rows = _rows(runs, cells, options, averaged)
    machines = runs.groupby("column")[[*MACHINE]].agg(lambda s: s.map(str).nunique()).max(axis=1)
    timed = tuple(c for c in columns if spec.speed and machines[c] == 1)
    table = Table(
        name=spec.name,
        title=spec.title,
        columns=columns,
        rows=rows,
        cells=cells,
        runs=runs,
        summaries=(AVERAGE,),
        published=spec.published,
        costs=True,
        timed=timed,
        axis=axis,
        conditions=_conditions(runs),
        repeated=repeated,
        unchosen=unchosen,
        caveat=one_line(spec.caveat),
        effects=effects(runs, [k for k in (*spec.vary, spec.columns) if k], spec.together)
        if spec.effects
        else pd.DataFrame(),
    )
    return dataclasses.replace(table, notes=notes(spec, table))


# ---------------------------------------------------------------------- which runs


def _chosen(runs: pd.DataFrame, key: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The runs with the best value of this setting, and the others: the one with the best mean dev
    accuracy over seeds, among runs that differ in nothing else. A value with fewer seeds than
    another is not chosen: it was tried with one seed only, or runs diverged, which leave no record.
    The column `tried` says which values each was chosen from."""
    if not key:
        return runs, runs.iloc[:0]
    settings = [c for c in runs if c.split(".")[0] in PARTS and c != key]
    kind = runs[[*settings, "data.fingerprint", "code"]].map(str).agg("|".join, axis=1)
    values = runs.assign(kind=kind, dev=runs["dev.accuracy"].astype(float)).groupby(["kind", key])
    tried = values.agg(seeds=("seed", "nunique"), dev=("dev", "mean")).reset_index()
    whole = tried[tried["seeds"] == tried.groupby("kind")["seeds"].transform("max")]
    best = whole.loc[whole.groupby("kind")["dev"].idxmax()].set_index("kind")[key]
    is_best = runs[key] == kind.map(best)
    names = tried.groupby("kind")[key].agg(lambda column: str(sorted(column, key=sortable)))
    return runs[is_best].assign(tried=kind.map(names)), runs[~is_best]


def compared(runs: pd.DataFrame) -> tuple[list[str], list[str]]:
    """The facts that all runs of a table share, and those that all runs of a column share."""
    settings = [c for c in runs if c.startswith(("model.", "protocol.")) and c not in OF_TABLE]
    return [f for f in OF_TABLE if f in runs], [*(f for f in OF_COLUMN if f in runs), *settings]


def may_differ(vary: Sequence[str]) -> tuple[str, ...]:
    """The facts in which runs of one table may differ if it varies these settings."""
    return (*vary, *FOLLOW) if vary else ()


def comparable(
    runs: pd.DataFrame, vary: Sequence[str] = ()
) -> Iterator[tuple[pd.DataFrame, dict[str, str]]]:
    """The runs of each task in groups that may share a table, in which the settings of `vary` may
    differ; each with the facts in which it differs from other groups of its task."""
    for _, of_task in runs.groupby("task", sort=False):
        facts = [f for part in compared(of_task) for f in part if f not in may_differ(vary)]
        texts = of_task[facts].fillna("absent").map(str)
        differ = [fact for fact in facts if texts[fact].nunique() > 1]
        for _, group in of_task.groupby(texts.agg("|".join, axis=1), sort=False):
            yield group, texts.loc[group.index[0], differ].to_dict()


# ---------------------------------------------------------------------- rows and columns


def _columns(runs: pd.DataFrame, setting: str) -> list[str]:
    if setting:
        first = runs.drop_duplicates("column").set_index("column")[setting]
        return sorted(first.index, key=lambda name: sortable(first[name]))
    place = {name: i for i, name in enumerate(data.builtin_tasks())}  # others follow, by name
    return sorted(runs["column"].unique(), key=lambda task: (place.get(task, 99), task))


def _named(spec: TableSpec, runs: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, dict[str, Any]]]:
    """The runs with the label of their row, and of every label the options that it stands for.

    Named are the settings in which runs of an attention in one column differ, options that differ
    from what `attention=<name>` sets, and those that the table varies. Of more than SPELT options,
    those that have their usual value are left out.
    """
    labels = pd.Series(index=runs.index, dtype=object)
    of_label: dict[str, dict[str, Any]] = {}
    for name, of_method in runs.groupby("attention", sort=False):
        usual = [{f"attention.{key}": v for key, v in usual_of(r).items()}
                 for r in of_method["record"]]  # fmt: skip
        keys = _naming(spec, of_method, usual)
        columns = [c for c in dict.fromkeys([*keys, *NOT_NONE]) if c in runs]
        options = [
            {k: run.get(k) for k in keys} | {k: run[k] for k in NOT_NONE if run[k] != "none"}
            for run in of_method[columns].to_dict("records")
        ]
        unusual = [{k for k, v in named.items() if str(v) != str(of_run.get(k, NEVER))}
                   for named, of_run in zip(options, usual, strict=True)]  # fmt: skip
        rows = pd.DataFrame({"options": options, "unusual": unusual}, of_method.index)
        for _, row in rows.groupby(rows["options"].map(str), sort=False):
            every, spelt = row["options"].iloc[0], set().union(*row["unusual"])
            shown = [f"{short_name(k)}={v}" for k, v in every.items()
                     if len(keys) <= SPELT or k in spelt]  # fmt: skip
            labels[row.index] = label = one_line(" ".join([str(name), *shown]))
            of_label[label] = {short_name(k): v for k, v in every.items()}
    return runs.assign(row=labels), of_label


def _naming(spec: TableSpec, runs: pd.DataFrame, usual: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings that name the rows of one attention, whose runs have these usual options."""
    options = [f"attention.{k}" for k in dict.fromkeys(
        option for record in runs["record"] for option in options_of(record))]  # fmt: skip
    keys = differing(runs, [*(o for o in options if o not in spec.vary), "code_of_training"])
    keys = ["code" if key == "code_of_training" else key for key in keys]
    keys += differing(runs[runs["pretrain.name"] != "none"], ["code"])
    of_runs = pd.DataFrame(usual, runs.index, dtype=object).map(str)
    keys += [o for o in options if o in of_runs and (of_runs[o] != runs[o].map(str)).any()]
    return list(dict.fromkeys([*keys, *spec.vary]))


def _rows(
    runs: pd.DataFrame,
    cells: pd.DataFrame,
    options: Mapping[str, dict[str, Any]],
    averaged: Sequence[str],
) -> pd.DataFrame:
    """The rows by label, with their mean over the columns that count."""
    counted = cells[cells.index.isin(averaged, level="column")].groupby("row", sort=False)
    rows = runs.groupby("row", sort=False)[["attention"]].first()
    rows["options"] = rows.index.map(options)
    n = counted.size().reindex(rows.index, fill_value=0)
    rows[AVERAGE] = counted["score"].mean().where(n == len(averaged))
    complete = counted["published"].count() == len(averaged)
    rows["published"] = counted["published"].apply(lambda s: s.astype(float).mean()).where(complete)
    rows["coverage"] = n.map(str) + f"/{len(averaged)}"
    rows["ranked"] = True
    # Rows of one attention by their options; several attentions by average, or by their column.
    if rows["attention"].nunique() == 1:
        places = rows["options"].map(lambda options: [sortable(v) for v in options.values()])
    elif cells.index.unique("column").size == 1:
        places = -cells["score"].droplevel("column")
    else:
        places = pd.Series(zip(-rows[AVERAGE].fillna(-np.inf), rows.index, strict=True), rows.index)
    return rows.loc[sorted(rows.index, key=places.to_dict().get)]


def _conditions(runs: pd.DataFrame) -> str:
    """Describe what the runs share in a few words; name every protocol, where a table varies it."""

    def every(values: pd.Series) -> str:
        return " and ".join(sorted(set(values.map(str))))

    protocols = runs["protocol.name"] + " v" + runs["protocol.version"].map(str)
    return (
        f"protocol {every(protocols)}, model {every(runs['model'])}, budget "
        f"{every(runs['budget'].map('{:g}'.format))}, precision {every(runs['precision'])}"
    )
