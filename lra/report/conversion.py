"""Tables of conversions: what is left of a softmax model's score with another attention.

One table is one model; rows are attentions with the stages they went through, columns are tasks.
Recovery is given both ways in use, which differ: the mean over tasks of score / teacher, and the
mean score over the mean teacher.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lra.config import UserError
from lra.report import converted, stats
from lra.report.converted import Converted
from lra.report.records import digest

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
# Numbers of a recipe that belong to stage 1 and so to a method; the others are the common budget.
STAGE_1 = ("stage1", "stage1_lr", "stage1_steps", "phi_lr", "joint")
STAGES = {
    (False, False): "swap only",
    (True, False): "stage 1 only",
    (False, True): "stage 2 only",
    (True, True): "",
}
MISS = object()
CONTROL, TEACHER = "softmax, trained on (control)", "softmax, the teacher"


@dataclasses.dataclass(frozen=True)
class Cell:
    records: list[Converted]
    values: list[float]
    best: bool = False
    tie: float | None = None

    @property
    def mean(self) -> float:
        return stats.mean(self.values)

    @property
    def deviation(self) -> float | None:
        return stats.deviation(self.values)


@dataclasses.dataclass(frozen=True)
class Row:
    label: str
    method: str  # the row of the published table it stands beside
    cells: dict[str, Cell]

    def mean_of_ratios(self, teacher: dict[str, float]) -> float:
        """Percent: the mean over tasks of score / teacher."""
        return 100 * stats.mean([c.mean / teacher[t] for t, c in self.cells.items()])

    def ratio_of_means(self, teacher: dict[str, float]) -> float:
        """Percent: the mean score / the mean teacher."""
        means = [c.mean for c in self.cells.values()]
        return 100 * sum(means) / sum(teacher[t] for t in self.cells)

    def headroom(self, teacher: dict[str, float], floor: dict[str, float]) -> float | None:
        """Percent of what the teacher has above always giving one answer, mean over tasks."""
        if any(teacher[t] <= floor[t] for t in self.cells):
            return None
        shares = [(c.mean - floor[t]) / (teacher[t] - floor[t]) for t, c in self.cells.items()]
        return 100 * stats.mean(shares)


@dataclasses.dataclass(frozen=True)
class Table:
    name: str
    title: str
    published: str
    tasks: list[str]
    rows: list[Row]  # the teacher's first
    teacher: dict[str, float]  # by task
    floor: dict[str, float]
    budget: str
    usual: dict[str, str]  # of an attention with several rows: the settings of the one without any


def build_all(folder: Path) -> list[Table]:
    """A table for each model and benchmark that there are records of."""
    groups: dict[tuple[str, str], list[Converted]] = defaultdict(list)
    for record in converted.load(folder):
        groups["glue" if record["task"] in GLUE else "vit", record["model"]].append(record)
    return [build(kind, model, records) for (kind, model), records in sorted(groups.items())]


def build(kind: str, model: str, records: Sequence[Converted]) -> Table:
    _refuse_mixtures(f"{kind}_{model}", records)
    order = [*GLUE, *sorted({r["task"] for r in records} - set(GLUE))]
    tasks = [t for t in order if any(r["task"] == t for r in records)]
    telling, usual = _telling(records), _usual(records)
    groups: dict[tuple[str, str], dict[str, list[Converted]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for record in records:
        attention = record["attention"]
        label = _label(record, telling[attention], usual.get(attention))
        groups[label][record["task"]].append(record)
    rows = [
        Row(*names, {t: _cell(by[t]) for t in tasks if t in by}) for names, by in groups.items()
    ]
    first = {t: next(r for r in records if r["task"] == t) for t in tasks}
    teacher = {t: r.teacher_score for t, r in first.items()}
    rows = sorted(
        _marked(rows, tasks), key=lambda r: (r.label != CONTROL, -r.mean_of_ratios(teacher))
    )
    top = Row(TEACHER, "teacher", {t: Cell([], [score]) for t, score in teacher.items()})
    return Table(
        name=f"{kind}_{model}",
        title=f"Conversion of {model}, {'GLUE' if kind == 'glue' else 'images'}",
        published=kind,
        tasks=tasks,
        rows=[top, *rows],
        teacher=teacher,
        floor={t: r.floor for t, r in first.items()},
        budget=_words(_budget(records)),
        usual={
            name: _words({k: settings[k] for k in telling[name] if k in settings})
            for name, settings in usual.items()
            if telling[name]
        },
    )


def _words(settings: dict[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in settings.items())


def _budget(records: Sequence[Converted]) -> dict[str, Any]:
    """Stage 2's numbers, of a run that had one."""
    second = next((r for r in records if r["recipe"].get("epochs")), records[0])
    return {k: v for k, v in second["recipe"].items() if k not in STAGE_1}


def _refuse_mixtures(name: str, records: Sequence[Converted]) -> None:
    """UserError with everything in which runs differ that must share a budget and a teacher."""
    told = []
    for task in dict.fromkeys(r["task"] for r in records):
        values: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for r in (r for r in records if r["task"] == task):
            source = ("teacher", "data", "labels")
            shared: dict[str, Any] = {key: r.facts[key] for key in source if r.facts.get(key)}
            if "labels" in shared:
                shared["labels"] = f"those of {digest(shared['labels'])}"
            if r["recipe"].get("epochs"):
                shared |= {k: v for k, v in r["recipe"].items() if k not in STAGE_1}
            for key, value in shared.items():
                values[key][str(value)].add(r["attention"])
        for key, by_value in values.items():
            if len(by_value) > 1:
                held = [f"{v} ({', '.join(sorted(by))})" for v, by in sorted(by_value.items())]
                told.append(f"on {task}, {key} is {' or '.join(held)}")
    if told:
        raise UserError(
            f"table '{name}' would mix conversions that cannot be compared. They differ:\n  "
            + "\n  ".join(told)
        )


def _settings(record: Converted) -> dict[str, Any]:
    """What may tell two rows of one attention apart, besides the stages."""
    own = dict(record["options"])
    if record["stage1"] is not None:
        own |= {k: record["recipe"][k] for k in STAGE_1 if k in record["recipe"]}
        own.setdefault("joint", 0)  # left out of records at its default
    return own


def _usual(records: Sequence[Converted]) -> dict[str, dict[str, Any]]:
    """Per attention, the settings of most of its runs: its row has the bare name. Where no settings
    have more runs than others, none is usual."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for r in records:
        if r["stage1"] is not None:
            counts[r["attention"]][json.dumps(_settings(r), sort_keys=True)] += 1
    usual = {}
    for attention, counter in counts.items():
        (first, n), *others = counter.most_common(2)
        if not others or others[0][1] < n:
            usual[attention] = json.loads(first)
    return usual


def _telling(records: Sequence[Converted]) -> dict[str, list[str]]:
    """Per attention, the settings in which its runs on one task differ."""
    seen: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for r in records:
        for key, value in _settings(r).items():
            seen[r["attention"], key][r["task"]].add(str(value))
    telling: dict[str, list[str]] = {r["attention"]: [] for r in records}
    for (attention, key), by_task in seen.items():
        if any(len(values) > 1 for values in by_task.values()):
            telling[attention].append(key)
    return telling


def _label(
    record: Converted, telling: Sequence[str], usual: dict[str, Any] | None
) -> tuple[str, str]:
    """A row's name, with what differs from the usual, and the method of the published table that it
    stands beside."""
    attention = record["attention"]
    second = bool(record["recipe"].get("epochs"))
    if attention == "softmax":
        return (CONTROL if second else "softmax, swap only"), ""
    stages = STAGES[record["stage1"] is not None, second]
    settings, usual = _settings(record), usual or {}
    options = " ".join(
        f"{k}={settings[k]}" for k in telling if k in settings and settings[k] != usual.get(k, MISS)
    )
    label = ", ".join(part for part in (f"{attention} {options}".strip(), stages) if part)
    method = {"": attention, "stage 2 only": f"{attention}, stage 2 only"}.get(stages, "")
    return label, method if not options else ""


def _cell(records: Sequence[Converted]) -> Cell:
    records = sorted(records, key=lambda r: r["seed"])
    return Cell(records, [r.score for r in records])


def _marked(rows: list[Row], tasks: Sequence[str]) -> list[Row]:
    """The best conversion of every task, and those that tie with it; softmax is no conversion."""
    marked = [dataclasses.replace(row, cells=dict(row.cells)) for row in rows]
    for task in tasks:
        samples = {
            i: row.cells[task].values
            for i, row in enumerate(rows)
            if task in row.cells and not row.label.startswith("softmax")
        }
        if not samples:
            continue
        best, tied = stats.ties(samples)
        for i in samples:
            cell = dataclasses.replace(rows[i].cells[task], best=i in best, tie=tied.get(i))
            marked[i].cells[task] = cell
    return marked
