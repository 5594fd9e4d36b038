"""Tables from a data frame of runs. Of training: rows are attentions, named by the options in which
runs of one attention differ; columns are tasks, or the values of a setting. Of conversions: a table
is one model; rows are attentions with the stages they went through, columns are tasks. The
teacher's score is a row, and recovery is given in both ways in use: the mean over tasks of score /
teacher, and the mean score over the mean teacher."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lra.base.config import UserError
from lra.data.registry import BUILTIN
from lra.data.rules import FILE as RULES
from lra.data.rules import read_scores
from lra.report.effects import agreements, effects
from lra.report.notes import compute_class, conversion_notes, training_notes
from lra.report.specs import TableSpec, below, published_score, select
from lra.report.table import (
    PARTS,
    Table,
    cells_of,
    differing,
    one_line,
    pairs_of,
    refuse_mixtures,
    short_name,
    sortable,
)
from lra.report.versus import example_by_example
from lra.results.frame import options_of, usual_of
from lra.results.record import Record, first_finished
from lra.runs.folder import digest
from lra.runs.schema import CONVERSION, TRAINING

FIVE = ("listops", "text", "retrieval", "image", "pathfinder")  # the tasks of an average
AVERAGE, NAMES = "average", ["row", "method", "options"]  # columns of rows, and of named runs
SPELT = 3  # where more options than these differ, rows are named by those with unusual values

# Facts that all runs of a table share, and those that its runs in one column share; of the latter
# the fingerprint covers every option of the data, and `model.` and `protocol.` are all settings
# with such names. A budget that an attention measures follows from what is varied.
OF_TABLE = (
    "protocol.name",
    "protocol.version",
    "model",
    "budget",
    "precision",
    "compute.budget.reference",
    "compute.budget.tolerance.parameters",
    "compute.budget.tolerance.flops",
)
FOLLOW = ("compute.budget.parameters", "compute.budget.flops")
OF_COLUMN = ("data.source", "data.fingerprint", "test.select", "test.examples", *FOLLOW)
NOT_NONE = ("processes", "pretrain.name")  # name a row wherever they are not "none"
CONDITIONS = ["protocol", "budget", "steps", "batch", "data.source"]  # of all runs of a cell
MACHINE = ["machine.device", "machine.threads", "machine.processes"]  # of comparable speeds
TIMES = ["steps_per_second", "peak_memory_mib"]  # shown if all runs of a column had one machine

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
# Numbers of a recipe that belong to stage 1 and so to a method; the others are the common budget.
STAGE_1 = ("stage1", "stage1_lr", "stage1_steps", "phi_lr", "joint")
# Options that every row of a method shows: what converts by default is not the paper's.
DESIGN = {"luna": ("M", "L", "nonneg")}
CONTROL, TEACHER = "softmax, trained on (control)", "softmax, the teacher"
STAGES = {
    (False, False): ", swap only",
    (True, False): ", stage 1 only",
    (False, True): ", stage 2 only",
    (True, True): "",
}


def build_all(specs: Sequence[TableSpec], runs: pd.DataFrame, folder: Path) -> list[Table]:
    """The tables for which there are runs, those of the specs first, then one for each converted
    model; `folder` is the one that all runs come from."""
    tables: dict[str, Table] = {}
    for spec in specs:
        if not (taken := selected(spec, runs, folder)).empty:
            tables[spec.name] = build(spec, taken, folder.parent)
    for table in tables.values():
        if table.spec.against in tables:
            table.agreements = agreements(table, tables[table.spec.against])
    return [*tables.values(), *conversions(runs)]


def selected(spec: TableSpec, runs: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The training runs that an entry of tables.yaml takes from the records of a folder."""
    training = runs[below(runs, folder / spec.records) & (runs["kind"] == TRAINING)]
    finished = pd.to_datetime(training["times.finished"], utc=True, format="ISO8601")
    training = training.loc[finished.sort_values(kind="stable").index].drop_duplicates("run")
    order = ["task", "protocol", "model", "attention", "run"]
    return select(training.sort_values(order), spec.where)


# ---------------------------------------------------------------------- training runs


def build(spec: TableSpec, taken: pd.DataFrame, folder: Path | None = None) -> Table:
    """A table of these training runs, with the rules of folder/rules.jsonl for their data."""
    for key in filter(None, (spec.choose, spec.columns)):
        if key not in taken or taken[key].isna().all():
            raise UserError(f"table '{spec.name}': no record has the setting '{key}'")
    first = {record.run for record in first_finished(taken["record"])}
    runs = taken[taken["run"].isin(first)]
    runs = best_on_dev(runs, spec.choose) if spec.choose else runs
    axis = short_name(spec.columns)
    runs = runs.assign(column=f"{axis}=" + runs[spec.columns].map(str) if axis else runs["task"])
    absent = runs.where(runs.notna(), "absent")  # a lack is a value too
    refuse_mixtures(spec.name, absent, *compared(runs, spec.vary, spec.choose))

    runs, columns = _named(spec, runs), _columns(runs, spec.columns)
    cells = _with_published(cells_of(runs), spec.published)
    cells = cells.join(runs.groupby(["row", "column"])[CONDITIONS].first())
    cells["gflops"] = cells["flops"] / 1e9
    cells["compute"] = [compute_class(record["compute"]) for record in cells["record"]]
    machines = runs.groupby("column")[MACHINE].agg(lambda s: s.map(str).nunique()).max(axis=1)
    untimed = machines.index[(machines > 1) | (not spec.speed)]
    cells.loc[cells.index.isin(untimed, level="column"), TIMES] = None
    rules = rules_for(runs, columns, folder) if folder else pd.DataFrame()
    if not rules.empty:
        best = rules.loc[~rules["bound"], columns].max()
        cells["rule"] = cells.index.get_level_values("column").map(best)
    averaged = columns if axis else FIVE
    summaries = (AVERAGE,) if not {*columns}.isdisjoint(averaged) else ()
    rows, scores = _rows_and_scores(cells, averaged)
    rows[AVERAGE] = scores.mean(axis=1, skipna=False)
    printed = cells["published"].astype(float).unstack("column").reindex(columns=averaged)
    rows["published"] = printed.mean(axis=1, skipna=False)
    # Rows of one attention by their options; several by average or, where there is none, by score.
    if rows["attention"].nunique() == 1:
        order = sorted(rows.index, key=lambda row: [*map(sortable, rows["options"][row].values())])
    else:
        several = summaries and len(columns) > 1
        means = rows[AVERAGE] if several else cells["score"].groupby("row").mean()
        order = means.sort_index().sort_values(ascending=False, kind="stable").index
    table = Table(
        spec=spec,
        columns=columns,
        rows=rows.loc[order],
        cells=cells,
        runs=runs,
        taken=taken,
        summaries=summaries,
        costs=True,
        rules=rules,
    )
    if spec.effects:
        settings = [k for k in (*spec.vary, spec.columns) if k]
        table.effects = effects(runs, settings, spec.together)
    table.notes = [*training_notes(table)]
    return table


def best_on_dev(runs: pd.DataFrame, key: str) -> pd.DataFrame:
    """The runs with the value of this setting that has the best mean dev accuracy over seeds, among
    runs that differ in nothing else. A value with fewer seeds than another is not taken: its other
    runs diverged, which leave no record. The column `tried` has the values it was taken from."""
    settings = [c for c in runs if c.split(".")[0] in PARTS and c != key]
    kind = runs[[*settings, "data.fingerprint", "code"]].map(str).agg("|".join, axis=1)
    values = runs.assign(kind=kind, dev=runs["dev.accuracy"].astype(float)).groupby(["kind", key])
    tried = values.agg(seeds=("seed", "nunique"), dev=("dev", "mean")).reset_index()
    ranked = tried.sort_values(["seeds", "dev"], ascending=False, kind="stable")
    best = ranked.drop_duplicates("kind").set_index("kind")[key]
    names = tried.groupby("kind")[key].agg(lambda column: str(sorted(column, key=sortable)))
    return runs.assign(tried=kind.map(names))[runs[key] == kind.map(best)]


def compared(
    runs: pd.DataFrame, vary: Sequence[str] = (), choose: str = ""
) -> tuple[list[str], list[str]]:
    """The facts that all runs of a table share, and those that all runs of a column share."""
    ignored = {choose, *vary, *(FOLLOW if vary else ())}
    settings = [c for c in runs if c.startswith(("model.", "protocol.")) and c not in OF_TABLE]
    of_table, of_column = (
        [f for f in facts if f in runs and f not in ignored]
        for facts in (OF_TABLE, [*OF_COLUMN, *settings])
    )
    return of_table, of_column


def rules_for(runs: pd.DataFrame, columns: Sequence[str], folder: Path) -> pd.DataFrame:
    """The scores of rules on the data of each column, in %, what each rule reads, and whether it is
    a bound of what any method can score."""
    scored = {line["fingerprint"]: line["rules"] for line in read_scores(folder / RULES)}
    data_of = runs.groupby("column")["fingerprint"].first()
    lines: dict[str, dict[str, Any]] = {}
    for column in columns:
        for name, rule in scored.get(data_of[column], {}).items():
            line = lines.setdefault(name, dict.fromkeys(columns, math.nan))
            line |= {
                column: 100 * rule["test"],
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
    for name, of_method in runs.groupby("attention", sort=False):
        keys, usual = _naming(spec, of_method), usual_of(of_method["record"].iloc[0])
        columns = [c for c in dict.fromkeys([*keys, *NOT_NONE]) if c in runs]
        for i, run in of_method[columns].to_dict("index").items():
            options = {short_name(k): run.get(k) for k in keys}
            options |= {short_name(k): run[k] for k in NOT_NONE if run[k] != "none"}
            shown = {
                k: v
                for k, v in options.items()
                if len(options) <= SPELT or str(v) != str(usual.get(k))
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
    keys = differing(runs, [*(o for o in options if o not in spec.vary), "code_of_training"])
    keys = ["code" if key == "code_of_training" else key for key in keys]
    keys += differing(runs[runs["pretrain.name"] != "none"], ["code"])
    usual = pd.DataFrame([*map(usual_of, records)], runs.index).add_prefix("attention.").map(str)
    keys += [o for o in options if o in usual and (usual[o] != runs[o].map(str)).any()]
    return list(dict.fromkeys([*keys, *spec.vary]))


# ---------------------------------------------------------------------- conversions


def conversions(runs: pd.DataFrame) -> list[Table]:
    """A table for each model and benchmark that there are conversions of."""
    runs = runs[runs["kind"] == CONVERSION].drop_duplicates("run")
    kind = runs["task"].isin(GLUE).map({True: "glue", False: "vit"})
    parts = runs.groupby([kind, "model"])
    return [_conversions_of(name, model, part) for (name, model), part in parts]


def _conversions_of(kind: str, model: str, runs: pd.DataFrame) -> Table:
    title = f"Conversion of {model}, {'GLUE' if kind == 'glue' else 'images'}"
    spec = TableSpec(name=f"{kind}_{model}", title=title, published=kind)
    order = [*GLUE, *sorted({*runs["task"]} - {*GLUE})]
    columns = [task for task in order if task in {*runs["task"]}]
    runs = runs.sort_values("task", key=lambda tasks: tasks.map(columns.index), kind="stable")
    runs["column"] = runs["task"]
    budget = [c for c in runs if c.startswith("recipe.") and short_name(c) not in STAGE_1]
    stage_2 = runs[budget].where(runs["recipe.epochs"].astype(bool))  # nothing without stage 2
    labels = [digest(labels) if (labels := r.get("labels")) else None for r in runs["record"]]
    facts = ["teacher", "data.fingerprint", "labels", *budget]  # early records lack some
    refuse_mixtures(spec.name, runs.assign(labels=labels, **stage_2), [], facts)

    runs, usual = _named_by_stages(runs)
    control = runs.loc[runs["attention"] == "softmax", "row"]  # no conversion, so never the best
    first = runs.drop_duplicates("column").set_index("column")
    teacher, floor = 100 * first["scores.teacher.score"].astype(float), first["floor"]
    top = pd.DataFrame({"score": teacher, "floor": floor, "task": columns, "method": "teacher"})
    top = top.assign(
        attention="softmax",
        options=[{} for _ in columns],
        seeds=0,
        learned=True,
        best=False,
        worse=False,
        record=None,
        values=[[t] for t in teacher],
        runs=[[] for _ in columns],
    )
    top.index = pd.MultiIndex.from_product([[TEACHER], columns], names=["row", "column"])
    cells = _with_published(pd.concat([top, cells_of(runs, {*control})]), kind)

    rows, scores = _rows_and_scores(cells, columns)
    learned, ratios = cells["learned"].groupby("row").any(), scores / teacher
    headroom = (scores - floor) / (teacher - floor).where(teacher > floor)
    recovery = 100 * pd.DataFrame(
        {
            "mean of ratios": ratios.mean(axis=1, skipna=False),
            "ratio of means": scores.mean(axis=1, skipna=False) / teacher.mean(),
            "headroom": headroom.mean(axis=1, skipna=False),
        }
    )
    rows[[*recovery]] = recovery.where(learned)
    printed = {
        row: published_score(kind, method, "recovery", {})[0]
        for (row, _), method in cells["method"].items()
    }
    rows["published"] = pd.Series(printed, dtype=float)
    # The teacher, the control, then by recovery, of the tasks that a row has; what learned nothing.
    places = pd.DataFrame({"learned": learned, "recovery": ratios.mean(axis=1)}, rows.index)
    order = [*places.sort_values([*places], ascending=False, kind="stable").index]
    order.sort(key=[TEACHER, CONTROL, *order].index)
    table = Table(
        spec=spec,
        columns=columns,
        rows=rows.loc[order],
        cells=cells,
        runs=runs,
        taken=runs,
        summaries=tuple(recovery),
    )
    table.pairs = example_by_example(table)
    shared = {short_name(c): values.iloc[0] for c in budget if len(values := stage_2[c].dropna())}
    table.notes = [*conversion_notes(table, CONTROL, floor, pairs_of(shared), usual)]
    return table


def _named_by_stages(runs: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    """The runs with the label of their row, and the options in which it is unusual, the stages
    among them; and what is usual for each attention: of the settings in which its runs on one task
    differ (those of stage 1 among runs that have it), what most of its runs have."""
    staged = runs["record"].map(lambda record: record["stage1"] is not None)
    finetuned = runs["recipe.epochs"].astype(bool)
    settings = pd.DataFrame([*map(_settings_of, runs["record"])], runs.index, dtype=object)
    facts = settings.columns
    settings["column"] = runs["column"] + staged.map(str)
    names, usual_of_method = {}, {}
    for attention, of_method in settings.groupby(runs["attention"], sort=False):
        naming = of_method[differing(of_method, facts)].map(str)
        modes = naming[staged[naming.index]].mode()
        usual = dict(modes.iloc[0]) if len(modes) else {}
        usual_of_method[attention] = pairs_of(usual)
        for i, values in naming.to_dict("index").items():
            options = runs.loc[i, "record"]["attention"]
            design = {k: options[k] for k in DESIGN.get(attention, ()) if k in options}
            unusual = {k: v for k, v in values.items() if v not in ("nan", usual.get(k))}
            end = STAGES[staged[i], finetuned[i]]
            label = f"{attention} {pairs_of(design | unusual)}".strip() + end
            label = CONTROL if label == "softmax, stage 2 only" else label
            method = "" if unusual else attention + end
            names[i] = label, method, unusual | ({"stages": end.strip(", ")} if end else {})
    named = runs.join(pd.DataFrame.from_dict(names, orient="index", columns=NAMES))
    return named, usual_of_method


def _settings_of(record: Record) -> dict[str, Any]:
    """The options of a conversion, its code, and what of its recipe belongs to stage 1."""
    recipe = {"joint": 0} | record["settings.recipe"]
    recipe["stage1_steps"] = recipe.get("stage1_steps") or "epoch"
    stage_1 = {} if record["stage1"] is None else {key: recipe.get(key) for key in STAGE_1}
    return options_of(record) | {"code": record.code} | stage_1


# ---------------------------------------------------------------------- both kinds


def _with_published(cells: pd.DataFrame, name: str | None) -> pd.DataFrame:
    facts = zip(cells["method"], cells["task"], cells["record"], strict=True)
    scores = [
        published_score(name, method, task, record["settings.attention"] if record else {})
        for method, task, record in facts
    ]
    return cells.join(pd.DataFrame(scores, cells.index, ["published", "source"], dtype=object))


def _rows_and_scores(
    cells: pd.DataFrame, counted: Sequence[str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A line per row, with how many of the columns that count it has; its scores in these."""
    rows = cells.groupby("row", sort=False)[["attention", "options"]].first()
    scores = cells["score"].unstack("column").reindex(rows.index, columns=counted)
    rows["coverage"] = scores.notna().sum(axis=1).map(str) + f"/{len(counted)}"
    return rows, scores
