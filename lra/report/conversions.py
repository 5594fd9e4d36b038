"""Tables of conversions: how much of a softmax model's score another attention keeps.

One table is one model; rows are attentions with the stages they went through, columns are tasks.
Recovery is given in both ways in use, which differ: the mean over tasks of score / teacher, and the
mean score over the mean teacher.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lra.report import paired, published, stats
from lra.report.notes import comparisons
from lra.report.table import Table, cells_of, pairs_of, refuse_mixtures
from lra.results.frame import options_of
from lra.results.record import CONVERSION, Record, digest

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
# Numbers of a recipe that belong to stage 1 and so to a method; the others are the common budget.
STAGE_1 = ("stage1", "stage1_lr", "stage1_steps", "phi_lr", "joint")
# Options that every row of a method shows: what converts by default is not the paper's.
DESIGN = {"luna": ("M", "L", "nonneg")}
CONTROL, TEACHER = "softmax, trained on (control)", "softmax, the teacher"
SUMMARIES = ("mean of ratios", "ratio of means", "headroom")
STAGES_OF = {(False, False): "swap only", (True, False): "stage 1 only",
             (False, True): "stage 2 only", (True, True): ""}  # fmt: skip


class RowName(NamedTuple):
    label: str
    short: str  # the same without the options of DESIGN
    method: str  # the row of the published table that it is compared with


def build_all(runs: pd.DataFrame) -> list[Table]:
    """A table for each model and benchmark that there are conversions of."""
    runs = runs[runs["kind"] == CONVERSION].drop_duplicates("run")
    kind = runs["task"].isin(GLUE).map({True: "glue", False: "vit"})
    return [build(*name, of_table) for name, of_table in runs.groupby([kind, "model"])]


def build(kind: str, model: str, runs: pd.DataFrame) -> Table:
    """A table of these runs; UserError if they cannot be compared."""
    order = [*GLUE, *sorted({*runs["task"]} - {*GLUE})]
    columns = [task for task in order if task in {*runs["task"]}]
    runs = runs.assign(column=runs["task"]).sort_values(
        "column", key=lambda s: s.map(columns.index), kind="stable"
    )
    facts = pd.DataFrame(list(map(_shared, runs["record"])), runs.index, dtype=object)
    name = f"{kind}_{model}"
    remedy = "export them to different folders"
    refuse_mixtures(
        name, runs[["attention", "column"]].join(facts), [], [*facts], remedy=remedy, absent=None
    )

    settings = [_settings(record) for record in runs["record"]]
    naming, usual = _naming(runs, settings), _usual(runs, settings)
    names = [_name(r, s, naming[r.attention], usual.get(r.attention, {}))
             for r, s in zip(runs["record"], settings, strict=True)]  # fmt: skip
    runs = runs.assign(row=[n.label for n in names], method=[n.method for n in names])
    first = runs.drop_duplicates("column").set_index("column")
    teacher, floor = 100 * first["scores.teacher.score"].astype(float), first["floor"]
    rows, cells = _rows_and_cells(kind, runs, teacher, floor)
    short = {n.label: n.short for n in names}
    table = Table(
        name=name,
        title=f"Conversion of {model}, {'GLUE' if kind == 'glue' else 'images'}",
        columns=columns,
        rows=rows,
        cells=cells,
        runs=runs,
        summaries=SUMMARIES,
        published=kind,
        pairs=_example_by_example(runs, rows, columns, short),
    )
    notes = _notes(kind, table, floor[columns], naming, usual)
    table.notes.extend([*notes[:3], *comparisons(table), *notes[3:]])
    return table


def _rows_and_cells(
    kind: str, runs: pd.DataFrame, teacher: pd.Series, floor: pd.Series
) -> tuple[pd.DataFrame, pd.DataFrame]:
    method = runs.groupby("row", sort=False)["method"].first()
    attention = runs.groupby("row", sort=False)["attention"].first()
    ranked = list(attention.index[attention != "softmax"])  # softmax is not a conversion
    cells = cells_of(runs, ranked)
    top = pd.DataFrame({"score": teacher, "values": [[t] for t in teacher], "floor": floor})
    top = top.assign(seeds=0, learned=True, best=False, worse=False, runs=[[] for _ in teacher])
    top.index = pd.MultiIndex.from_product([[TEACHER], top.index], names=["row", "column"])
    cells = pd.concat([top.astype({"runs": object}), cells])

    method, attention = (
        pd.Series({TEACHER: "teacher"} | dict(method)),
        pd.Series({TEACHER: "softmax"} | dict(attention)),
    )
    printed = [
        published.published_score(kind, method[row], column) or (None, None)
        for row, column in cells.index
    ]
    cells[["published", "source"]] = pd.DataFrame(printed, cells.index, dtype=object)
    rows = pd.DataFrame({"attention": attention, "options": [{} for _ in attention]})
    for label, of_row in cells.groupby("row"):
        of_row = of_row.droplevel("row")
        ratios = _recovery(of_row, teacher, floor)
        rows.loc[label, "order"] = ratios[0]
        complete = len(of_row) == len(teacher) and of_row["learned"].any()
        rows.loc[label, [*SUMMARIES]] = ratios if complete else [np.nan] * 3
        rows.loc[label, "coverage"] = f"{len(of_row)}/{len(teacher)}"
        rows.loc[label, "learned"] = bool(of_row["learned"].any())
    recovery = [published.published_score(kind, name, "recovery") for name in method]
    rows["published"] = [np.nan if r is None else r.value for r in recovery]
    rows["ranked"] = rows["attention"] != "softmax"
    rows["place"] = [{TEACHER: 0, CONTROL: 1}.get(str(label), 2) for label in rows.index]
    keys = ["place", "learned", "order"]
    return rows.sort_values(keys, ascending=[True, False, False], kind="stable"), cells


def _recovery(cells: pd.DataFrame, teacher: pd.Series, floor: pd.Series) -> list[float]:
    """Percent of the teacher's score: mean of ratios, ratio of means, and of what the teacher has
    above always giving one answer."""
    score, top, least = cells["score"], teacher[cells.index], floor[cells.index]
    headroom = 100 * ((score - least) / (top - least)).mean() if (top > least).all() else np.nan
    return [100 * (score / top).mean(), 100 * score.sum() / teacher.sum(), headroom]


# ---------------------------------------------------------------------- which runs, which rows


def _budget(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in recipe.items() if k not in STAGE_1}


def _shared(record: Record) -> dict[str, Any]:
    """Facts that runs of one table share on a task; early records lack some facts."""
    labels, recipe = record.get("labels"), record["settings.recipe"]
    facts = {
        "teacher": record["settings.teacher"],
        "data": record.get("data.fingerprint"),
        "labels": f"those of {digest(labels)}" if labels else None,
    }
    recorded = {key: value for key, value in facts.items() if value}
    return recorded | (_budget(recipe) if recipe.get("epochs") else {})


def _settings(record: Record) -> dict[str, Any]:
    """Settings that may differ between two rows of one attention, besides the stages."""
    settings = options_of(record) | {"code": record.code}
    if record["stage1"] is not None:
        recipe = record["settings.recipe"]
        settings |= {k: recipe[k] for k in STAGE_1 if k in recipe}
        settings.setdefault("joint", 0)  # left out of records at its default
        if settings["stage1_steps"] is None:
            settings["stage1_steps"] = "epoch"
    return settings


def _naming(runs: pd.DataFrame, settings: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Per attention, the settings in which its runs on one task differ; those of stage 1 among
    runs that have it."""
    frame = pd.DataFrame(list(settings), runs.index, dtype=object).map(str)
    staged = runs["record"].map(lambda record: record["stage1"] is not None)
    naming: dict[str, list[str]] = {}
    for (name, _), some in runs.groupby(["attention", ~staged], sort=False):
        keys = list(
            dict.fromkeys(
                k for s, r in zip(settings, runs.index, strict=True) if r in some.index for k in s
            )
        )
        counts = frame.loc[some.index, keys].groupby(some["column"]).nunique().max()
        of_method = naming.setdefault(name, [])
        of_method += [k for k in keys if counts[k] > 1 and k not in of_method]
    return naming


def _usual(runs: pd.DataFrame, settings: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Per attention, the settings of most of its runs, whose row has the bare name. An attention
    of which no settings have more runs than all others is left out."""
    usual = {}
    for attention in runs["attention"].unique():
        counter = Counter(
            json.dumps(s, sort_keys=True)
            for record, s in zip(runs["record"], settings, strict=True)
            if record.attention == attention and record["stage1"] is not None
        )
        (first, n), (_, second) = [*counter.most_common(2), ("", 0), ("", 0)][:2]
        if n > second:
            usual[attention] = json.loads(first)
    return usual


def _name(
    record: Record, settings: dict[str, Any], naming: Sequence[str], usual: Mapping[str, Any]
) -> RowName:
    attention = record.attention
    first, second = record["stage1"] is not None, bool(record.get("settings.recipe.epochs"))
    if attention == "softmax":
        label = CONTROL if second else "softmax, swap only"
        return RowName(label, label, "")
    stages, missing = STAGES_OF[first, second], object()
    unusual = {k: settings[k] for k in naming
               if k in settings and settings[k] != usual.get(k, missing)}  # fmt: skip
    design = {k: settings[k] for k in DESIGN.get(attention, ()) if k in settings}
    label, short = (
        ", ".join(filter(None, (f"{attention} {pairs_of(options)}".strip(), stages)))
        for options in (design | unusual, unusual)
    )
    method = {"": attention, "stage 2 only": f"{attention}, stage 2 only"}.get(stages, "")
    return RowName(label, short, "" if unusual else method)


# ---------------------------------------------------------------------- notes


def _notes(
    kind: str,
    table: Table,
    floor: pd.Series,
    naming: Mapping[str, Sequence[str]],
    usual: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    records = list(table.runs["record"])
    floors = ", ".join(f"{task} {value:.1f}" for task, value in floor.items())
    second = next((r for r in records if r.get("settings.recipe.epochs")), records[0])
    machines = {(r.get("machine.device") or "unknown device", r.get("versions.torch") or "?")
                for r in records}  # fmt: skip
    made_on = ", ".join(f"{device} (torch {torch})" for device, torch in sorted(machines))
    notes = [
        "Scores in %, on the dev set, of the epoch that is best on the same dev set: mean over "
        "seeds ± sample standard deviation (number of seeds).",
        f"{CONTROL}: the teacher, which keeps its softmax, after the same stage 2 as the "
        "conversions.",
        "Recovery: the score in % of the teacher's, for rows that have every task. Mean of ratios: "
        "the mean over tasks of score / teacher. Ratio of means: mean score / mean score of the "
        "teacher. Headroom: the score above always giving one answer "
        f"({floors}), in % of the teacher's, mean over tasks.",
        f"Stage 2 of every row: {pairs_of(_budget(second['settings.recipe']))}. Run on {made_on}.",
    ]
    if not table.cells["learned"].all():
        notes.append(
            "∅: no better than always giving one answer; not ranked, and a row with no other score "
            "has no recovery."
        )
    for name, settings in usual.items():
        if shown := pairs_of({k: settings[k] for k in naming[name] if k in settings}):
            notes.append(f"Rows of {name} that name no other settings have {shown}.")
    if "luna" in naming:
        notes.append(
            "luna's options are in its rows because converted models use M = 2 head_dim, L = 1 and "
            "exp by default, where the paper lists M=8 L=8 nonneg=True."
        )
    if "t2r" in naming:
        notes.append("In the literature t2r is T2R-HH after both stages, T2R after stage 2 only.")
    return [*notes, *(["Scores on images are top-1 accuracies."] if kind == "vit" else [])]


# ---------------------------------------------------------------------- tests of pairs of rows


def _example_by_example(
    runs: pd.DataFrame, rows: pd.DataFrame, columns: Sequence[str], short: Mapping[str, str]
) -> pd.DataFrame:
    """Paired tests: every two rows that have all tasks, and every row with the usual one of its
    attention, whose short name begins the other's. Columns are tasks."""
    complete = {*rows.index[rows["coverage"] == f"{len(columns)}/{len(columns)}"]}

    def wanted(a: str, b: str) -> bool:
        pairs = ((short[a], short[b]), (short[b], short[a]))
        return {a, b} <= complete or any(b.startswith((f"{a} ", f"{a},")) for a, b in pairs)

    lines: dict[tuple[str, str], dict[str, str]] = {}
    for task in columns:
        of_task = runs[runs["column"] == task]
        records = {row: list(of_task.loc[of_task["row"] == row, "record"]) for row in rows.index}
        for pair in paired.compare({row: r for row, r in records.items() if r}, wanted):
            mark = "*" if pair.p < stats.LEVEL else ""
            shown = f"{pair.difference:+.1f} (p {pair.p:.2g}){mark}"
            lines.setdefault((pair.a, pair.b), dict.fromkeys(columns, ""))[task] = shown
    body = [{"first": a, "second": b} | cells for (a, b), cells in lines.items()]
    return pd.DataFrame(body).set_index("first") if body else pd.DataFrame()
