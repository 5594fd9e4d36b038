"""Tables of conversions: how much of a softmax model's score another attention keeps.

One table is one model; rows are attentions with the stages they went through, columns are tasks.
Recovery is given in both ways in use, which differ: the mean over tasks of score / teacher, and the
mean score over the mean teacher.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lra.report import published, stats
from lra.report.notes import comparisons
from lra.report.table import Table, cells_of, differing, pairs_of, refuse_mixtures
from lra.report.versus import paired_tests
from lra.results.frame import options_of
from lra.results.record import Record
from lra.runs.folder import digest
from lra.runs.schema import CONVERSION

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
# Numbers of a recipe that belong to stage 1 and so to a method; the others are the common budget.
STAGE_1 = ("stage1", "stage1_lr", "stage1_steps", "phi_lr", "joint")
# Options that every row of a method shows: what converts by default is not the paper's.
DESIGN = {"luna": ("M", "L", "nonneg")}
CONTROL, TEACHER = "softmax, trained on (control)", "softmax, the teacher"
SUMMARIES = ("mean of ratios", "ratio of means", "headroom")
STAGES_OF = {(False, False): "swap only", (True, False): "stage 1 only",
             (False, True): "stage 2 only", (True, True): ""}  # fmt: skip


def build_all(runs: pd.DataFrame) -> list[Table]:
    """A table for each model and benchmark that there are conversions of."""
    runs = runs[runs["kind"] == CONVERSION].drop_duplicates("run")
    kind = runs["task"].isin(GLUE).map({True: "glue", False: "vit"})
    return [build(name, model, part) for (name, model), part in runs.groupby([kind, "model"])]


def build(kind: str, model: str, runs: pd.DataFrame) -> Table:
    """A table of these runs; UserError if they cannot be compared."""
    order = [*GLUE, *sorted({*runs["task"]} - {*GLUE})]
    columns = [task for task in order if task in {*runs["task"]}]
    places = runs["task"].map(columns.index).sort_values(kind="stable")
    runs = runs.loc[places.index].assign(column=runs["task"])
    name = f"{kind}_{model}"
    facts = pd.DataFrame(list(map(_shared, runs["record"])), runs.index, dtype=object)
    mixed, remedy = runs[["attention", "column"]].join(facts), "export them to different folders"
    refuse_mixtures(name, mixed, [], [*facts], remedy=remedy, absent=None)

    runs, usual = _named(runs)
    first = runs.drop_duplicates("column").set_index("column")
    teacher, floor = 100 * first["scores.teacher.score"].astype(float), first["floor"]
    rows, cells = _rows_and_cells(kind, runs, teacher, floor)
    table = Table(
        name=name,
        title=f"Conversion of {model}, {'GLUE' if kind == 'glue' else 'images'}",
        columns=columns,
        rows=rows,
        cells=cells,
        runs=runs,
        summaries=SUMMARIES,
        published=kind,
        pairs=_example_by_example(runs, rows, columns),
    )
    notes = _notes(kind, table, floor[columns], usual)
    table.notes.extend([*notes[:3], *comparisons(table), *notes[3:]])
    return table


def _rows_and_cells(
    kind: str, runs: pd.DataFrame, teacher: pd.Series, floor: pd.Series
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The teacher comes first, then the control; conversions by their mean of ratios."""
    rows = runs.groupby("row", sort=False)[["attention", "method"]].first()
    cells = cells_of(runs, rows.index[rows["attention"] != "softmax"])  # that is no conversion
    top = pd.DataFrame({"score": teacher, "values": [[t] for t in teacher], "floor": floor})
    top = top.assign(seeds=0, learned=True, best=False, worse=False, runs=[[] for _ in teacher])
    top.index = pd.MultiIndex.from_product([[TEACHER], top.index], names=["row", "column"])
    cells = pd.concat([top.astype({"runs": object}), cells])

    rows = pd.concat([pd.DataFrame({"attention": "softmax", "method": "teacher"}, [TEACHER]), rows])
    method = rows.pop("method")
    printed = [published.published_score(kind, method[row], task) for row, task in cells.index]
    cells[["published", "source"]] = pd.DataFrame(printed, cells.index, dtype=object)
    rows["options"] = [{} for _ in method]
    for label, of_row in cells.groupby("row"):
        of_row = of_row.droplevel("row")
        score, best, least = of_row["score"], teacher[of_row.index], floor[of_row.index]
        headroom = ((score - least) / (best - least)).mean() if (best > least).all() else np.nan
        ratios = [100 * n for n in ((score / best).mean(), score.sum() / teacher.sum(), headroom)]
        learned = bool(of_row["learned"].any())
        complete = len(of_row) == len(teacher) and learned
        rows.loc[label, "order"] = ratios[0]
        rows.loc[label, [*SUMMARIES]] = ratios if complete else [np.nan] * 3
        rows.loc[label, "coverage"] = f"{len(of_row)}/{len(teacher)}"
        rows.loc[label, "learned"] = learned
    recovery = [published.published_score(kind, name, "recovery")[0] for name in method]
    rows["published"] = np.array(recovery, dtype=float)
    rows["ranked"] = rows["attention"] != "softmax"
    rows["place"] = [{TEACHER: 0, CONTROL: 1}.get(label, 2) for label in rows.index]
    keys = ["place", "learned", "order"]
    return rows.sort_values(keys, ascending=[True, False, False], kind="stable"), cells


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


def _named(runs: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    """The runs with the label of their row, the same without the options of DESIGN, and the row of
    the published table; and the settings of the rows that have the bare name of their attention.

    Named are settings in which runs of an attention on one task differ (those of stage 1 among runs
    that have it), unless most of its runs have them.
    """
    settings = runs["record"].map(_settings)
    staged = runs["record"].map(lambda record: record["stage1"] is not None)
    facts = pd.DataFrame(list(settings), runs.index, dtype=object).assign(column=runs["column"])
    names, bare = {}, {}
    for attention, of_method in runs.groupby("attention", sort=False):
        naming: dict[str, None] = {}
        for _, part in of_method.groupby(~staged, sort=False):
            keys = dict.fromkeys(itertools.chain(*settings[part.index]))
            naming |= dict.fromkeys(differing(facts.loc[part.index], keys))
        of_staged = settings[of_method.index[staged[of_method.index]]]
        counter = Counter(json.dumps(s, sort_keys=True) for s in of_staged)
        (most, n), (_, second) = [*counter.most_common(2), ("", 0), ("", 0)][:2]
        usual = json.loads(most) if n > second else {}
        bare[attention] = pairs_of({k: usual[k] for k in naming if k in usual})
        for i, record in of_method["record"].items():
            names[i] = _name(record, settings[i], naming, usual)
    columns = ["row", "short", "method"]
    return runs.join(pd.DataFrame.from_dict(names, orient="index", columns=columns)), bare


def _name(
    record: Record, settings: dict[str, Any], naming: Iterable[str], usual: Mapping[str, Any]
) -> tuple[str, str, str]:
    attention, missing = record.attention, object()
    first, second = record["stage1"] is not None, bool(record.get("settings.recipe.epochs"))
    if attention == "softmax":
        label = CONTROL if second else "softmax, swap only"
        return label, label, ""
    stages = STAGES_OF[first, second]
    unusual = {k: settings[k] for k in naming
               if k in settings and settings[k] != usual.get(k, missing)}  # fmt: skip
    design = {k: settings[k] for k in DESIGN.get(attention, ()) if k in settings}
    label, short = (
        ", ".join(filter(None, (f"{attention} {pairs_of(options)}".strip(), stages)))
        for options in (design | unusual, unusual)
    )
    return label, short, "" if unusual or stages not in ("", "stage 2 only") else short


# ---------------------------------------------------------------------- notes


def _notes(kind: str, table: Table, floor: pd.Series, usual: Mapping[str, str]) -> list[str]:
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
    for name, shown in usual.items():
        if shown:
            notes.append(f"Rows of {name} that name no other settings have {shown}.")
    if "luna" in usual:
        notes.append(
            "luna's options are in its rows because converted models use M = 2 head_dim, L = 1 and "
            "exp by default, where the paper lists M=8 L=8 nonneg=True."
        )
    if "t2r" in usual:
        notes.append("In the literature t2r is T2R-HH after both stages, T2R after stage 2 only.")
    if kind == "vit":
        notes.append("Scores on images are top-1 accuracies.")
    return notes


# ---------------------------------------------------------------------- tests of pairs of rows


def _example_by_example(
    runs: pd.DataFrame, rows: pd.DataFrame, columns: Sequence[str]
) -> pd.DataFrame:
    """Paired tests: every two rows that have all tasks, and every row with the usual one of its
    attention, whose short name begins the other's. Columns are tasks."""
    short = dict(zip(runs["row"], runs["short"], strict=True))
    complete = {*rows.index[rows["coverage"] == f"{len(columns)}/{len(columns)}"]}

    def wanted(a: str, b: str) -> bool:
        pairs = ((short[a], short[b]), (short[b], short[a]))
        return {a, b} <= complete or any(b.startswith((f"{a} ", f"{a},")) for a, b in pairs)

    lines: dict[tuple[str, str], dict[str, str]] = {}
    for task in columns:
        of_task = runs[runs["column"] == task]
        records = of_task.groupby("row")["record"].agg(list).reindex(rows.index).dropna()
        for pair in paired_tests(records.to_dict(), wanted):
            mark = "*" if pair.p < stats.LEVEL else ""
            shown = f"{pair.difference:+.1f} (p {pair.p:.2g}){mark}"
            lines.setdefault((pair.a, pair.b), dict.fromkeys(columns, ""))[task] = shown
    body = [{"first": a, "second": b} | cells for (a, b), cells in lines.items()]
    return pd.DataFrame(body).set_index("first") if body else pd.DataFrame()
