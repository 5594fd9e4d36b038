"""Tables of conversions. A table is one model; rows are attentions with the stages they went
through, columns are tasks. The teacher's score is a row, and recovery is given in both ways in use:
the mean over tasks of score / teacher, and the mean score over the mean teacher."""

from __future__ import annotations

from typing import Any

import pandas as pd

from lra.base.digests import digest
from lra.report.cell import Cell
from lra.report.notes import conversion_notes
from lra.report.published import published_score
from lra.report.rows import NAMES, rows_and_scores, with_published
from lra.report.specs import TableSpec
from lra.report.table import Table, cells_of, differing, pairs_of, refuse_mixtures, short_name
from lra.report.versus import example_by_example
from lra.results.frame import options_of
from lra.results.record import Record
from lra.runs.schema import CONVERSION

BENCHMARKS = {"glue": "GLUE", "vit": "images", "made": "made sentences"}
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


def conversions(runs: pd.DataFrame) -> list[Table]:
    """A table for each model and benchmark that there are conversions of."""
    runs = runs[runs["kind"] == CONVERSION].drop_duplicates("run")
    kind = runs["task"].map({**dict.fromkeys(GLUE, "glue"), "tiny": "made"}).fillna("vit")
    parts = runs.groupby([kind, "model"])
    return [_table_of(name, model, part) for (name, model), part in parts]


def _table_of(kind: str, model: str, runs: pd.DataFrame) -> Table:
    title = f"Conversion of {model}, {BENCHMARKS[kind]}"
    published = None if kind == "made" else kind
    spec = TableSpec(name=f"{kind}_{model}", title=title, published=published)

    # Columns are tasks, in GLUE's order.
    order = [*GLUE, *sorted({*runs["task"]} - {*GLUE})]
    columns = [task for task in order if task in {*runs["task"]}]
    runs = runs.sort_values("task", key=lambda tasks: tasks.map(columns.index), kind="stable")
    runs["column"] = runs["task"]
    stage_2 = _stage_2(runs)
    _refuse_other_runs(spec.name, runs, stage_2)

    # The teacher is a row above those of the runs. The control is no conversion: never the best.
    runs, usual = _named_by_stages(runs)
    first = runs.drop_duplicates("column").set_index("column")
    teacher = first["stages.teacher.score"].astype(float)
    floor = first["floor"]
    control = runs.loc[runs["attention"] == "softmax", "row"]
    cells = cells_of(runs, {*control})
    cells = pd.concat([_cells_of_teacher(teacher, floor)[cells.columns], cells])
    cells = with_published(cells, spec.published)

    # What is left of the teacher, for rows that have learned something.
    rows, scores = rows_and_scores(cells, columns)
    learned = cells["learned"].groupby("row").any()
    recovery = _recovery(scores, teacher, floor)
    rows[[*recovery]] = recovery.where(learned)
    rows["published"] = _published_recovery(published, cells)

    table = Table(
        spec=spec,
        columns=columns,
        rows=rows.loc[_order(rows, learned, scores / teacher)],
        cells=cells,
        runs=runs,
        taken=runs,
        summaries=tuple(recovery),
    )
    table.pairs = example_by_example(table)
    numbers = {short_name(c): stage_2[c].dropna() for c in stage_2}
    shared = {name: values.iloc[0] for name, values in numbers.items() if len(values)}
    table.notes = [*conversion_notes(table, CONTROL, floor, pairs_of(shared), usual)]
    return table


def _stage_2(runs: pd.DataFrame) -> pd.DataFrame:
    """The numbers of each run's recipe that are the common budget; empty without stage 2."""
    budget = [c for c in runs if c.startswith("recipe.") and short_name(c) not in STAGE_1]
    return runs[budget].where(runs["recipe.epochs"].astype(bool))


def _refuse_other_runs(name: str, runs: pd.DataFrame, stage_2: pd.DataFrame) -> None:
    """Refuse runs of one task that have another teacher, other data, or another stage 2."""
    labels = [digest(labels) if (labels := r.get("labels")) else None for r in runs["record"]]
    facts = ["teacher", "data.fingerprint", "labels", *stage_2]  # early records lack some
    refuse_mixtures(name, runs.assign(labels=labels, **stage_2), [], facts)


def _cells_of_teacher(scores: pd.Series, floor: pd.Series) -> pd.DataFrame:
    """The teacher's score on each task as a cell like those of `cells_of`: one value and no run, so
    that it is shown above the others and takes no part in comparisons."""
    cells = {
        (TEACHER, task): Cell(
            attention="softmax",
            method="teacher",
            options={},
            task=task,
            score=score,
            values=[score],
            floor=floor[task],
            digits=1,
            sign=1,
            runs=[],
        )
        for task, score in scores.items()
    }
    index = pd.MultiIndex.from_tuples(cells, names=["row", "column"])
    return pd.DataFrame([*map(vars, cells.values())], index)


def _recovery(scores: pd.DataFrame, teacher: pd.Series, floor: pd.Series) -> pd.DataFrame:
    """What each row keeps of the teacher, in percent, in three ways; NaN for rows that lack a task.
    Headroom is the score above always giving one answer."""
    ratios = scores / teacher
    headroom = (scores - floor) / (teacher - floor).where(teacher > floor)
    return 100 * pd.DataFrame(
        {
            "mean of ratios": ratios.mean(axis=1, skipna=False),
            "ratio of means": scores.mean(axis=1, skipna=False) / teacher.mean(),
            "headroom": headroom.mean(axis=1, skipna=False),
        }
    )


def _published_recovery(published: str | None, cells: pd.DataFrame) -> pd.Series:
    printed = {
        row: published_score(published, method, "recovery", {}).score
        for (row, _), method in cells["method"].items()
    }
    return pd.Series(printed, dtype=float)


def _order(rows: pd.DataFrame, learned: pd.Series, ratios: pd.DataFrame) -> list[str]:
    """The teacher, the control, then by recovery, of the tasks that a row has; what learned nothing
    comes last."""
    places = pd.DataFrame({"learned": learned, "recovery": ratios.mean(axis=1)}, rows.index)
    order = [*places.sort_values([*places], ascending=False, kind="stable").index]
    first = [TEACHER, CONTROL]
    return [row for row in first if row in order] + [row for row in order if row not in first]


# ---------------------------------------------------------------------- the names of rows


def _named_by_stages(runs: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    """The runs with the label of their row, and the options in which it is unusual, the stages
    among them; and what is usual for each attention: of the settings in which its runs on one task
    differ (those of stage 1 among runs that have it), what most of its runs have."""
    staged = runs["record"].map(lambda record: record["stage1"] is not None)
    finetuned = runs["recipe.epochs"].astype(bool)
    settings = pd.DataFrame([*map(_settings_of, runs["record"])], runs.index, dtype=object)
    facts = settings.columns
    settings["column"] = runs["column"] + staged.map(str)
    names = {}
    usual_of_method = {}
    for attention, of_method in settings.groupby(runs["attention"], sort=False):
        naming = of_method[differing(of_method, facts)].map(str)
        modes = naming[staged[naming.index]].mode()
        usual = dict(modes.iloc[0]) if len(modes) else {}
        usual_of_method[attention] = pairs_of(usual)
        for i, values in naming.to_dict("index").items():
            unusual = {k: v for k, v in values.items() if v not in ("nan", usual.get(k))}
            stages = STAGES[staged[i], finetuned[i]]
            names[i] = _name_of(attention, runs.loc[i, "record"], unusual, stages)
    named = runs.join(pd.DataFrame.from_dict(names, orient="index", columns=NAMES))
    return named, usual_of_method


def _name_of(
    attention: str, record: Record, unusual: dict[str, Any], stages: str
) -> tuple[str, str, dict[str, Any]]:
    """The label of a row; the method by which published rows name it, if any; its options."""
    options = record["attention"]
    design = {k: options[k] for k in DESIGN.get(attention, ()) if k in options}
    label = f"{attention} {pairs_of(design | unusual)}".strip() + stages
    if label == "softmax, stage 2 only":
        label = CONTROL
    method = "" if unusual else attention + stages
    by_stages = {"stages": stages.strip(", ")} if stages else {}
    return label, method, unusual | by_stages


def _settings_of(record: Record) -> dict[str, Any]:
    """The options of a conversion, its code, and what of its recipe belongs to stage 1."""
    recipe = {"joint": 0} | record["settings.recipe"]
    recipe["stage1_steps"] = recipe.get("stage1_steps") or "epoch"
    stage_1 = {} if record["stage1"] is None else {key: recipe.get(key) for key in STAGE_1}
    return options_of(record) | {"code": record.code} | stage_1
