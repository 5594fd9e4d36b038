"""Tables of conversions: how much of a softmax model's score another attention keeps.

One table is one model; rows are attentions with the stages they went through, columns are tasks.
Recovery is given in both ways in use, which differ: the mean over tasks of score / teacher, and the
mean score over the mean teacher.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lra.report import paired, published, stats
from lra.report.compare import differing, refuse_mixtures
from lra.report.table import Cell, Table, TableRow, cells_by_row, mark_best, options_of, pairs_of
from lra.results.record import CONVERSION, Record, digest, unique_runs

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
# Numbers of a recipe that belong to stage 1 and so to a method; the others are the common budget.
STAGE_1 = ("stage1", "stage1_lr", "stage1_steps", "phi_lr", "joint")
# Options that every row of a method shows: what converts by default is not the paper's.
DESIGN = {"luna": ("M", "L", "nonneg")}
CONTROL, TEACHER = "softmax, trained on (control)", "softmax, the teacher"
SUMMARIES = ("mean of ratios", "ratio of means", "headroom")
RECOVERY = "recovery"  # the published column beside the mean of ratios
MISSING = object()
ByTask = Mapping[str, float]


class RowName(NamedTuple):
    label: str
    short: str  # the same without the options of DESIGN
    method: str  # the row of the published table that it is compared with


def build_all(records: Iterable[Record]) -> list[Table]:
    """A table for each model and benchmark that there are conversions of."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in unique_runs(records, CONVERSION):
        groups["glue" if record["task"] in GLUE else "vit", record["model"]].append(record)
    return [build(kind, model, runs) for (kind, model), runs in sorted(groups.items())]


def build(kind: str, model: str, records: Sequence[Record]) -> Table:
    """A table of these records; UserError if they cannot be compared."""
    refuse_mixtures(
        f"{kind}_{model}",
        records,
        of_table=lambda r: {},
        of_task=_shared,
        remedy="export them to different folders",
        absent=None,
    )
    order = [*GLUE, *sorted({r["task"] for r in records} - set(GLUE))]
    tasks = [t for t in order if any(r["task"] == t for r in records)]
    records = sorted(records, key=lambda r: tasks.index(r["task"]))
    first = {r["task"]: r for r in reversed(records)}
    teacher = {t: 100 * first[t]["scores.teacher.score"] for t in tasks}
    floor = {t: 100 * first[t]["floor"] for t in tasks}
    naming, usual = _naming(records), _usual(records)
    cells = cells_by_row(
        records,
        lambda r: _name(r, naming[r.attention], usual.get(r.attention)),
        lambda r, name: published.published_score(kind, name.method, r["task"]),
    )
    top = {t: Cell([teacher[t]], [], published.published_score(kind, "teacher", t)) for t in tasks}
    rows = [
        _row(kind, name, by_task, teacher, floor)
        for name, by_task in [(RowName(TEACHER, TEACHER, "teacher"), top), *cells.items()]
    ]
    rows = mark_best(rows, tasks)
    place = {TEACHER: 0, CONTROL: 1}
    rows.sort(
        key=lambda r: (
            place.get(r.label, 2),
            not any(cell.learned for cell in r.cells.values()),
            -_mean_of_ratios(r.cells, teacher),
        )
    )
    return Table(
        name=f"{kind}_{model}",
        title=f"Conversion of {model}, {'GLUE' if kind == 'glue' else 'images'}",
        tasks=tasks,
        rows=rows,
        notes=_notes(kind, rows, records, floor, naming, usual),
        summaries=SUMMARIES,
        published=kind,
        pairs=_example_by_example(rows, tasks, {name.label: name.short for name in cells}),
    )


def _row(
    kind: str, name: RowName, cells: dict[str, Cell], teacher: ByTask, floor: ByTask
) -> TableRow:
    runs = [record for cell in cells.values() for record in cell.records]
    attention = runs[0].attention if runs else "softmax"
    printed = published.published_score(kind, name.method, RECOVERY)
    return TableRow(
        label=name.label,
        attention=attention,
        cells=cells,
        summary=_recovery(cells, teacher, floor),
        published_summary=printed.value if printed else None,
        tasks=f"{len(cells)}/{len(teacher)}",
        ranked=attention != "softmax",  # softmax is not a conversion
    )


# ---------------------------------------------------------------------- recovery


def _recovery(cells: Mapping[str, Cell], teacher: ByTask, floor: ByTask) -> dict[str, float | None]:
    """Percent of the teacher's score; None for a row that lacks a task of the table."""
    if len(cells) < len(teacher) or not any(cell.learned for cell in cells.values()):
        return dict.fromkeys(SUMMARIES)
    ratio_of_means = 100 * sum(cell.mean for cell in cells.values()) / sum(teacher.values())
    numbers = _mean_of_ratios(cells, teacher), ratio_of_means, _headroom(cells, teacher, floor)
    return dict(zip(SUMMARIES, numbers, strict=True))


def _mean_of_ratios(cells: Mapping[str, Cell], teacher: ByTask) -> float:
    return 100 * stats.mean([cell.mean / teacher[task] for task, cell in cells.items()])


def _headroom(cells: Mapping[str, Cell], teacher: ByTask, floor: ByTask) -> float | None:
    """Percent of what the teacher has above always giving one answer, mean over tasks."""
    if any(teacher[task] <= floor[task] for task in cells):
        return None
    shares = [(c.mean - floor[t]) / (teacher[t] - floor[t]) for t, c in cells.items()]
    return 100 * stats.mean(shares)


# ---------------------------------------------------------------------- which runs, which rows


def _budget(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in recipe.items() if k not in STAGE_1}


def _shared(record: Record) -> dict[str, Any]:
    """Facts that runs of one table share on a task; early records lack some facts."""
    labels = record.get("labels")
    facts = {
        "teacher": record["settings.teacher"],
        "data": record.get("data.fingerprint"),
        "labels": f"those of {digest(labels)}" if labels else None,
    }
    recipe = record["settings.recipe"]
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


def _naming(records: Sequence[Record]) -> dict[str, list[str]]:
    """Per attention, the settings in which its runs differ; those of stage 1 among runs that have
    it."""
    naming: dict[str, list[str]] = {r.attention: [] for r in records}
    for staged in (True, False):
        runs = [r for r in records if (r["stage1"] is not None) == staged]
        for attention, keys in differing(runs, _settings).items():
            naming[attention] += [key for key in keys if key not in naming[attention]]
    return naming


def _usual(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Per attention, the settings of most of its runs, whose row has the bare name. An attention
    of which no settings have more runs than all others is left out."""
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


def _name(record: Record, naming: Sequence[str], usual: dict[str, Any] | None) -> RowName:
    attention = record.attention
    first, second = record["stage1"] is not None, bool(record.get("settings.recipe.epochs"))
    if attention == "softmax":
        label = CONTROL if second else "softmax, swap only"
        return RowName(label, label, "")
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
    return RowName(label, short, "" if unusual else method)


# ---------------------------------------------------------------------- notes


def _notes(
    kind: str,
    rows: Sequence[TableRow],
    records: Sequence[Record],
    floor: ByTask,
    naming: dict[str, list[str]],
    usual: dict[str, dict[str, Any]],
) -> list[str]:
    floors = ", ".join(f"{task} {value:.1f}" for task, value in floor.items())
    second = next((r for r in records if r.get("settings.recipe.epochs")), records[0])
    machines = {(r.get("machine.device") or "unknown device", r.get("versions.torch") or "?")
                for r in records}  # fmt: skip
    made_on = ", ".join(f"{device} (torch {torch})" for device, torch in sorted(machines))
    bare = {
        name: pairs_of({k: settings[k] for k in naming[name] if k in settings})
        for name, settings in usual.items()
    }
    notes = [
        "Scores in %, on the dev set, of the epoch that is best on the same dev set: mean over "
        "seeds ± sample standard deviation (number of seeds).",
        f"{CONTROL}: the teacher, which keeps its softmax, after the same stage 2 as the "
        "conversions.",
        "Recovery: the score in % of the teacher's, for rows that have every task. Mean of ratios: "
        "the mean over tasks of score / teacher. Ratio of means: mean score / mean score of the "
        "teacher.",
        "Headroom: the score above always giving one answer "
        f"({floors}), in % of the teacher's, mean over tasks.",
        "Bold: the best conversion of its column, if it has several seeds. ≈: too close to it for "
        "these seeds to show a difference (Welch's t-test with Holm's correction, "
        f"p ≥ {stats.LEVEL:g}). Rows with a single seed are not tested.",
        f"Stage 2 of every row: {pairs_of(_budget(second['settings.recipe']))}. Run on {made_on}.",
    ]
    if any(not cell.learned for row in rows for cell in row.cells.values()):
        notes.append(
            "∅: no better than always giving one answer; not ranked, and a row with no other score "
            "has no recovery."
        )
    for name, shown in bare.items():
        if shown:
            notes.append(f"Rows of {name} that name no other settings have {shown}.")
    if "luna" in naming:
        notes.append(
            "luna's options are in its rows because converted models use M = 2 head_dim, L = 1 and "
            "exp by default, where the paper lists M=8 L=8 nonneg=True."
        )
    if "t2r" in naming:
        notes.append("In the literature t2r is T2R-HH after both stages, T2R after stage 2 only.")
    if kind == "vit":
        notes.append("Scores on images are top-1 accuracies.")
    return notes


# ---------------------------------------------------------------------- tests of pairs of rows


def _example_by_example(
    rows: Sequence[TableRow], tasks: Sequence[str], short: Mapping[str, str]
) -> list[list[str]]:
    """Paired tests (head, then rows): every two rows that have all tasks, and every row with the
    usual one of its attention, whose short name begins the other's. Columns are tasks."""
    complete = {row.label for row in rows if len(row.cells) == len(tasks)}

    def wanted(a: str, b: str) -> bool:
        pairs = ((short[a], short[b]), (short[b], short[a]))
        return {a, b} <= complete or any(b.startswith((f"{a} ", f"{a},")) for a, b in pairs)

    tested: dict[tuple[str, str], dict[str, paired.Pair]] = defaultdict(dict)
    for task in tasks:
        runs = {r.label: r.cells[task].records for r in rows if task in r.cells}
        for pair in paired.compare(runs, wanted):
            tested[pair.a, pair.b][task] = pair
    body = [[*names, *(_shown(by_task.get(t)) for t in tasks)] for names, by_task in tested.items()]
    return [["first", "second", *tasks], *body] if body else []


def _shown(pair: paired.Pair | None) -> str:
    if pair is None:
        return ""
    return f"{pair.difference:+.1f} (p {pair.p:.2g}){'*' if pair.p < stats.LEVEL else ''}"
