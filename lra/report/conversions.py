"""Tables of conversions: how much of a softmax model's score another attention keeps.

One table is one model; rows are attentions with the stages they went through, columns are tasks.
Recovery is given in both ways in use, which differ: the mean over tasks of score / teacher, and the
mean score over the mean teacher.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lra.config import UserError
from lra.records import CONVERSION, Record, digest, load
from lra.report import paired, stats
from lra.report.published import conversion as _published
from lra.report.table import Cell, Row, Table, differences, differing, marked, pairs_of

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
# Numbers of a recipe that belong to stage 1 and so to a method; the others are the common budget.
STAGE_1 = ("stage1", "stage1_lr", "stage1_steps", "phi_lr", "joint")
# Options that name every row of a method: what converts by default is not the paper's.
DESIGN = {"luna": ("M", "L", "nonneg")}
LUNA = (
    "luna converts with M = 2 head_dim, L = 1 and exp unless told otherwise; the paper lists M=8 "
    "L=8 nonneg=True."
)
CONTROL, TEACHER = "softmax, trained on (control)", "softmax, the teacher"
MEASURES = ("mean of ratios", "ratio of means", "headroom")
MISSING = object()
By = dict[str, float]  # by task


class Names(NamedTuple):
    label: str  # of the row
    short: str  # the same without its method's design
    method: str  # the row of the published table that it stands beside


def build_all(folder: Path) -> list[Table]:
    """A table for each model and benchmark that there are records of."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in load([folder], CONVERSION):
        groups["glue" if record["task"] in GLUE else "vit", record["model"]].append(record)
    return [build(kind, model, records) for (kind, model), records in sorted(groups.items())]


def build(kind: str, model: str, records: Sequence[Record]) -> Table:
    name = f"{kind}_{model}"
    _refuse_mixtures(name, records)
    order = [*GLUE, *sorted({r["task"] for r in records} - set(GLUE))]
    tasks = [t for t in order if any(r["task"] == t for r in records)]
    naming, usual = differing(records, _settings), _usual(records)
    groups: dict[Names, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in sorted(records, key=lambda r: tasks.index(r["task"])):
        names = _names(record, naming[record.attention], usual.get(record.attention))
        groups[names][record["task"]].append(record)
    first = {t: next(r for r in records if r["task"] == t) for t in tasks}
    teacher = {t: 100 * r["scores.teacher.score"] for t, r in first.items()}
    floor = {t: 100 * r["floor"] for t, r in first.items()}
    top = Row(
        TEACHER,
        "softmax",
        {t: Cell([score], [], _published(kind, "teacher", t)) for t, score in teacher.items()},
        published_summary=_published_recovery(kind, "teacher"),
        ranked=False,
    )
    built = (_row(kind, names, by) for names, by in groups.items())
    rows = marked([top, *built], tasks)
    rows = [_with_recovery(row, teacher, floor) for row in rows]
    place = {TEACHER: 0, CONTROL: 1}
    rows.sort(key=lambda r: (place.get(r.label, 2), -_mean_of_ratios(r, teacher)))
    return Table(
        name=name,
        title=f"Conversion of {model}, {'GLUE' if kind == 'glue' else 'images'}",
        tasks=tasks,
        rows=rows,
        notes=_notes(kind, records, floor, naming, usual),
        summaries=MEASURES,
        published=kind,
        pairs=_example_by_example(rows, tasks, {names.label: names.short for names in groups}),
    )


def _row(kind: str, names: Names, by_task: dict[str, list[Record]]) -> Row:
    method, cells = names.method, {}
    for task, records in by_task.items():
        records = sorted(records, key=lambda r: r["seed"])
        cells[task] = Cell([r.score for r in records], records, _published(kind, method, task))
    attention = next(iter(by_task.values()))[0].attention
    known = _published_recovery(kind, method)
    ranked = attention != "softmax"  # softmax is no conversion
    return Row(names.label, attention, cells, published_summary=known, ranked=ranked)


def _published_recovery(kind: str, method: str) -> float | None:
    known = _published(kind, method, "recovery")
    return known.value if known else None


# ---------------------------------------------------------------------- recovery


def _with_recovery(row: Row, teacher: By, floor: By) -> Row:
    """Percent of the teacher's score; not given for a row that lacks a task of the table."""
    summary: dict[str, float | None] = dict.fromkeys(MEASURES)
    if set(row.cells) == set(teacher):
        means = {task: cell.mean for task, cell in row.cells.items()}
        summary = {
            "mean of ratios": _mean_of_ratios(row, teacher),
            "ratio of means": 100 * sum(means.values()) / sum(teacher.values()),
            "headroom": _headroom(means, teacher, floor),
        }
    return dataclasses.replace(row, summary=summary, tasks=f"{len(row.cells)}/{len(teacher)}")


def _mean_of_ratios(row: Row, teacher: By) -> float:
    """Percent: the mean over tasks of score / teacher."""
    return 100 * stats.mean([cell.mean / teacher[task] for task, cell in row.cells.items()])


def _headroom(means: By, teacher: By, floor: By) -> float | None:
    """Percent of what the teacher has above always giving one answer, mean over tasks."""
    if any(teacher[task] <= floor[task] for task in means):
        return None
    shares = [(m - floor[task]) / (teacher[task] - floor[task]) for task, m in means.items()]
    return 100 * stats.mean(shares)


# ---------------------------------------------------------------------- which runs, which rows


def _budget(recipe: dict[str, Any]) -> dict[str, Any]:
    """Stage 2's numbers, which all rows of a table share."""
    return {k: v for k, v in recipe.items() if k not in STAGE_1}


def _refuse_mixtures(name: str, records: Sequence[Record]) -> None:
    """UserError with everything in which runs differ that must share a budget and a teacher."""

    def facts(record: Record) -> dict[str, Any]:
        shared = {"teacher": record["settings.teacher"], "data": record.get("data.fingerprint")}
        if record.get("labels"):
            shared["labels"] = f"those of {digest(record['labels'])}"
        shared = {key: value for key, value in shared.items() if value}
        recipe = record["settings.recipe"]
        return shared | (_budget(recipe) if recipe.get("epochs") else {})

    found = []
    for task in dict.fromkeys(r["task"] for r in records):
        among = [r for r in records if r["task"] == task]
        found += [f"on {task}, {line}" for line in differences(among, facts, absent=None)]
    if found:
        raise UserError(
            f"table '{name}' would mix conversions that cannot be compared. They differ:\n  "
            + "\n  ".join(found)
        )


def _settings(record: Record) -> dict[str, Any]:
    """What may tell two rows of one attention apart, besides the stages."""
    own = {k: v for k, v in record["attention"].items() if k != "name"}
    if record["stage1"] is not None:
        recipe = record["settings.recipe"]
        own |= {k: recipe[k] for k in STAGE_1 if k in recipe}
        own.setdefault("joint", 0)  # left out of records at its default
        if own["stage1_steps"] is None:
            own["stage1_steps"] = "epoch"
    return own


def _usual(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Per attention, the settings of most of its runs: that row has the bare name. Where no
    settings have more runs than others, none is usual."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for r in records:
        if r["stage1"] is not None:
            counts[r.attention][json.dumps(_settings(r), sort_keys=True)] += 1
    usual = {}
    for attention, counter in counts.items():
        (first, n), *others = counter.most_common(2)
        if not others or others[0][1] < n:
            usual[attention] = json.loads(first)
    return usual


def _names(record: Record, naming: Sequence[str], usual: dict[str, Any] | None) -> Names:
    attention = record.attention
    first, second = record["stage1"] is not None, bool(record.get("settings.recipe.epochs"))
    if attention == "softmax":
        label = CONTROL if second else "softmax, swap only"
        return Names(label, label, "")
    stages = {(False, False): "swap only", (True, False): "stage 1 only",
              (False, True): "stage 2 only", (True, True): ""}[first, second]  # fmt: skip
    settings, usual = _settings(record), usual or {}
    unusual = {
        k: settings[k] for k in naming if k in settings and settings[k] != usual.get(k, MISSING)
    }
    design = {k: settings[k] for k in DESIGN.get(attention, ()) if k in settings}
    label, short = (
        ", ".join(filter(None, (f"{attention} {pairs_of(options)}".strip(), stages)))
        for options in (design | unusual, unusual)
    )
    method = {"": attention, "stage 2 only": f"{attention}, stage 2 only"}.get(stages, "")
    return Names(label, short, "" if unusual else method)


# ---------------------------------------------------------------------- notes


def _notes(
    kind: str,
    records: Sequence[Record],
    floor: By,
    naming: dict[str, list[str]],
    usual: dict[str, dict[str, Any]],
) -> list[str]:
    """What a reader must know to read the numbers."""
    floors = ", ".join(f"{task} {value:.1f}" for task, value in floor.items())
    second = next((r for r in records if r.get("settings.recipe.epochs")), records[0])
    machines = {(r.get("machine.device") or "unknown device", r.get("versions.torch") or "?")
                for r in records}  # fmt: skip
    made_on = ", ".join(f"{device} (torch {torch})" for device, torch in sorted(machines))
    alone = {
        name: pairs_of({k: settings[k] for k in naming[name] if k in settings})
        for name, settings in usual.items()
    }
    return [
        "Dev scores in %, of the best epoch on the same dev set: mean ± sample deviation (seeds).",
        f"{CONTROL}: the teacher with the same second stage and its own attention.",
        "Recovery in % of the teacher, of rows that have every task. Mean of ratios: "
        "mean over tasks of score / teacher. Ratio of means: mean score / mean teacher.",
        "Headroom: the share of what the teacher has above always giving one answer "
        f"({floors}), mean over tasks.",
        "Bold: best conversion of its column. ≈: the seeds cannot tell it from that one (Welch's "
        f"test, Holm-corrected, p ≥ {stats.LEVEL:g}); a single seed is not tested.",
        f"Stage 2: {pairs_of(_budget(second['settings.recipe']))}. Run on {made_on}.",
        *(f"{name} without more words: {options}." for name, options in alone.items() if options),
        *([LUNA] if "luna" in naming else []),
        *(["t2r with both stages is T2R-HH, with stage 2 only T2R."] if "t2r" in naming else []),
        *(["Images: top-1 accuracy."] if kind == "vit" else []),
    ]


def _example_by_example(
    rows: Sequence[Row], tasks: Sequence[str], short: dict[str, str]
) -> list[list[str]]:
    """Paired tests (head, then rows): every two rows that have all tasks, and every row with the
    usual one of its attention, whose short name begins the other's. Columns are tasks."""
    whole = {row.label for row in rows if len(row.cells) == len(tasks)}

    def asked(a: str, b: str) -> bool:
        pairs = ((short[a], short[b]), (short[b], short[a]))
        return {a, b} <= whole or any(b.startswith((f"{a} ", f"{a},")) for a, b in pairs)

    found: dict[tuple[str, str], dict[str, paired.Pair]] = defaultdict(dict)
    for task in tasks:
        cells = {r.label: r.cells[task].records for r in rows if task in r.cells}
        for pair in paired.compare(cells, asked):
            found[pair.a, pair.b][task] = pair
    body = [[*names, *(_tested(by.get(t)) for t in tasks)] for names, by in found.items()]
    return [["first", "second", *tasks], *body] if body else []


def _tested(pair: paired.Pair | None) -> str:
    if pair is None:
        return ""
    return f"{pair.difference:+.1f} (p {pair.p:.2g}){'*' if pair.p < stats.LEVEL else ''}"
