"""`lra records check`: what the numbers of records follow from, and which cannot be right.

A record is *proven* if its score and loss follow from its answers and the answers' labels are
those of the prepared data; *recomputed* if they follow from the answers, but the data are not at
hand; *trusted* if it has no answers, or a metric that is not known here. docs/records.md says what
this does and does not show.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lra import data
from lra.base.errors import UserError, printable, readable
from lra.data.arrays import Prepared
from lra.metrics.answers import Answers
from lra.metrics.metric import BUILTIN, Metric, facts_of, get, names
from lra.metrics.target import Classes, Target, target_class
from lra.results.record import Record
from lra.runs.folder import RESULT
from lra.runs.schema import CONVERSION, TRAINING

PROVEN, RECOMPUTED, TRUSTED = "proven", "recomputed", "trusted"
DISTINCT = 10  # of fewer different log-probabilities two runs may have the same by chance
SAME_NUMBERS = ("evaluate", "chunk")  # options of how something is computed, not of what

Problems = Iterable[tuple[Record, str]]


def refuse_contradictions(records: Sequence[Record]) -> None:
    """UserError with every record that contradicts itself, its answers or other records."""
    refuse(itertools.chain(_alone(records), _other_labels(records)))


def without_contradictions(records: Sequence[Record]) -> list[Record]:
    """Leave those records out, and say so."""
    for problems in (_alone, _other_labels):
        reasons: dict[int, str] = {}
        for record, reason in problems(records):
            reasons.setdefault(id(record), f"left out: {record.where} cannot be right: {reason}")
        for line in reasons.values():
            print(printable(line), file=sys.stderr)
        records = [record for record in records if id(record) not in reasons]
    return list(records)


def _alone(records: Sequence[Record]) -> Problems:
    for record in records:
        check = _training if record.kind == TRAINING else _conversion
        try:
            yield from ((record, reason) for reason in (*_metric(record), *check(record)))
        except UserError as error:  # of its answers
            yield record, str(error)


def beside(records: Sequence[Record], others: Sequence[Record]) -> Problems:
    """Find those of the records that cannot be right beside others, which can."""
    ours = {id(record) for record in records}
    found = _other_labels([*others, *records])
    return [(record, reason) for record, reason in found if id(record) in ours]


def check_records(
    records: Sequence[Record],
    data_dir: Path,
    conversion_data: Path | None = None,
    *,
    reevaluate: bool = False,
) -> Counter[str]:
    """Make every check, the slow ones too, and count records proven, recomputed and trusted."""
    from rich.console import Console
    from rich.progress import track

    from lra.data.prepare import with_fingerprint

    refuse_contradictions(records)
    counts: Counter[str] = Counter()
    problems: list[tuple[Record, str]] = []
    for record in track(records, "checking", console=Console(stderr=True)):
        key = record["task"], record.get("data.fingerprint")
        if record.kind == CONVERSION:
            at_hand: Any = _labels_at_hand(*key, conversion_data)
            reasons = [*_labels(record, at_hand)] if at_hand and record.get("labels") else []
        else:
            known = record["task"] in data.names()  # or given from memory, in another process
            at_hand = with_fingerprint(data_dir, *key) if known else None
            reasons = [*_cost(record), *(_on_data(record, at_hand) if at_hand else ())]
            if reevaluate:
                reasons += _evaluated_again(record, data_dir)
        problems += [(record, reason) for reason in reasons]
        proof = PROVEN if at_hand else RECOMPUTED
        scored = metric_named(record, record["metric.name"]) and record.answers
        counts[proof if scored else TRUSTED] += 1
    refuse(problems)
    return counts


def refuse(problems: Problems) -> None:
    """UserError with all of these, if there are any."""
    if lines := [f"{record.where}: {problem}" for record, problem in problems]:
        raise UserError("records that cannot be right:\n  " + "\n  ".join(lines))


# ---------------------------------------------------------------------- from the record alone


def _metric(record: Record) -> Iterator[str]:
    """Compare what a record says of a metric of ours with the metric itself."""
    if (name := record["metric.name"]) not in BUILTIN:
        return
    for key, value in facts_of(get(name)).items():
        if (stated := record[f"metric.{key}"]) != value:
            yield f"its metric {name} has {key} {stated!r}, not {value!r}"


def _training(record: Record) -> Iterator[str]:
    if (answers := record.answers) is not None:
        yield from _of_answers(record, answers)
    if (curve := record["curve"]) and (stated := record.get("dev.score")) is not None:
        best = max if record["metric.higher_is_better"] else min
        computed = best(score for _, score in curve)  # of metrics.csv, which has six digits
        yield from _differ("best dev score", stated, computed, 1e-5 * max(1, abs(computed)))
    for name, stage in record["stages"].items():
        if (step := stage.get("step") or 0) > record["steps"]:
            yield f"its {name} checkpoint is of step {step}, but it has {record['steps']} steps"


def _conversion(record: Record) -> Iterator[str]:
    """Compute a conversion's score again by the metric of its task, its floor and its recovery."""
    teacher, floor = record["stages.teacher.score"], record.floor
    for name, lost in (("recovery", 0.0), ("headroom_recovery", floor or 0.0)):
        if (stated := record.get(name)) is not None and teacher > lost:
            computed = 100 * (record.score - lost) / (teacher - lost)
            yield from _differ(name, stated, computed, 1e-4 * max(1, abs(computed)))
    if (answers := record.answers) is None:
        return
    metric = get(record["metric.name"])
    target = target_class(metric.targets[0])(2)
    floor = metric.constant(answers.labels, answers.labels, target)
    yield from _differ("score", record["score"], metric.score(answers, target), 1e-4)
    yield from _differ("floor", record["floor"], floor, 1e-4)


def _of_answers(record: Record, answers: Answers) -> Iterator[str]:
    stage, target = record.stage, target_of(record)
    scored = stage.get("scored") or stage["examples"]
    if len(answers) != scored:
        yield f"it has {len(answers)} answers to {scored} questions"
    for name, stated in {record["metric.name"]: record.score, **stage.get("metrics", {})}.items():
        if (metric := metric_named(record, name)) is not None:
            said, computed = f"test {metric.title}", metric.score(answers, target)
            yield from _differ(said, stated, computed, 1e-9 * max(1, abs(stated)))
    loss = target.loss_of(answers)
    yield from _differ("test loss", stage["loss"], loss, 2e-3 * (1 + loss))
    if predicted := stage.get("predicted"):
        counted = np.bincount(answers.answers, minlength=len(predicted)).tolist()
        if predicted != counted:
            yield f"its answers are {counted} per class, but it says {predicted}"


def target_of(record: Record) -> Target:
    """Build what the task of a training asks, which needs no code of the task."""
    facts = record.get("data.target") or {"name": Classes.name, "outputs": 0}
    return target_class(facts["name"])(**{k: v for k, v in facts.items() if k != "name"})


def metric_named(record: Record, name: str) -> Metric | None:
    """Give a metric of a record; None if it is one of a task's own that is not known here."""
    if name not in names():
        with contextlib.suppress(UserError):  # a task that another process has registered
            data.get(record["task"])  # registers its metrics too
    return get(name) if name in names() else None


def _differ(what: str, stated: float, computed: float, tolerance: float) -> Iterator[str]:
    if not math.isclose(stated, computed, rel_tol=0, abs_tol=tolerance):
        yield f"its {what} is {stated:.6g}, but {computed:.6g} follows from what is beside it"


# ---------------------------------------------------------------------- beside other records


def _other_labels(records: Sequence[Record]) -> Problems:
    labels_of: dict[Any, str] = {}
    for r in records:
        by_split = r.get("labels") or {}  # of a conversion
        sizes = r.stage.get("examples") or str(sorted((k, len(v)) for k, v in by_split.items()))
        labels = r.get("answers.labels") or (by_split and json.dumps(by_split))
        key = r["task"], r.get("data.fingerprint"), sizes
        if labels and labels != labels_of.setdefault(key, labels):
            yield r, "its labels are not those of other runs on the same data"


def equal_answers(records: Sequence[Record], others: Sequence[Record] = ()) -> Iterator[str]:
    """Say which of the records have, to the last log-probability, the answers of a run of another
    seed, method, option, model, recipe or data set. It may be a copy by mistake, so people should
    look; it may be right, so nothing is refused. A network that is sure of everything is not
    named."""
    first: dict[str, tuple[Any, Record]] = {}
    ours = {id(record) for record in records}
    for r in [*others, *records]:
        if (digest := r.get("answers.packed")) is None:
            continue
        origin = _origin(r)
        there, other = first.setdefault(digest, (origin, r))
        if id(r) not in ours or origin == there:
            continue
        if len(np.unique(getattr(r.answers, "log_p", ()))) >= DISTINCT:
            yield (
                f"note: the answers of {r.where} are, to the last digit, those of {other.where}: "
                "one is a copy, or both compute the same function"
            )


def _origin(record: Record) -> tuple[Any, ...]:
    """What makes a run's answers its own."""
    options = {k: v for k, v in record["attention"].items() if k not in SAME_NUMBERS}
    decisive = (record.get(f"settings.{key}") for key in ("model", "protocol.recipe"))
    return record["seed"], options, record["data.fingerprint"], *decisive


# ---------------------------------------------------------------------- with data and network


def _labels(record: Record, at_hand: dict[str, np.ndarray]) -> Iterator[str]:
    theirs = record["labels"].items()
    if not all(np.array_equal(at_hand.get(split, ()), of) for split, of in theirs):
        yield "its labels are not those of the task's data"


@cache
def _labels_at_hand(task: str, fingerprint: str | None, folder: Path | None) -> dict[str, Any]:
    """Read the labels of a conversion's task, by split; none if no folder has its data."""
    from luna.base import LunaError
    from luna.convert import tasks
    from luna.convert.tasks.base import labels_of

    try:
        if folder is None or (spec := tasks.get(task)).fingerprint(folder) != fingerprint:
            return {}
        return {s: labels_of(examples).numpy() for s, examples in spec.read(folder)[1].items()}
    except LunaError:
        return {}


def _on_data(record: Record, prepared: Prepared) -> Iterator[str]:
    """Compare labels and the score of a constant answer with those of the prepared data."""
    metric = metric_named(record, record["metric.name"])
    if record.floor is not None and metric is not None:
        floor = prepared.floor(metric)
        yield from _differ("floor", record.floor, floor, 1e-9 * max(1, abs(floor)))
    if (answers := record.answers) is None:
        return
    is_classes = isinstance(prepared.layout.target, Classes)
    if is_classes and answers.answers.max() >= (classes := prepared.layout.classes):
        yield f"it answers {answers.answers.max()}, but there are {classes} classes"
    labels = np.asarray(prepared.split("test").labels)
    if record.get("settings.protocol.evaluation.drop_last"):
        labels = labels[: len(labels) - len(labels) % record["batch"]]
    scored = prepared.layout.target.scored(labels)
    if not np.array_equal(labels[scored], answers.labels):
        yield "its labels are not those of the prepared data"
    elif metric is not None and (stated := record.stage.get("noise")) is not None:
        of_examples = answers.grouped(scored.reshape(len(scored), -1).sum(1))
        noise = metric.noise(of_examples, prepared.layout.target)
        yield from _differ("noise", stated, noise, 1e-6 * max(1, abs(noise)))


def _cost(record: Record) -> Iterator[str]:
    """Count the networks of its settings and budget again, as far as they can be built here."""
    from lra.base.config import Tolerance
    from lra.compute.budget import MEASURES, NUMBERS, Budget, Cost
    from lra.compute.count import count_run
    from lra.settings.experiment import read_experiment
    from lra.settings.presets import reference_of

    compute, budget = record["compute"], record.get("compute.budget") or {}
    reference, counts = budget.get("reference"), dict[str, Any]()
    networks: list[tuple[str, dict[str, Any], str | None]] = [("network", compute, None)]
    if reference not in (None, NUMBERS):
        networks.append(("budget", budget, reference))
    run = None
    for what, stated, named in networks:
        try:
            with readable(record.path, "its network cannot be built here, so its cost is trusted"):
                run = run or read_experiment(record["settings"], record["seed"])
                attention = reference_of(named, run.task.name) if named else None
                # What is compared below needs no backward pass, which is half of the work.
                counts[what] = count_run(run, attention, backward=False)
        except UserError as error:
            print(f"  {record.run}: {error}", flush=True)
            continue
        for size in ("parameters", "flops"):
            if stated.get(size) != (number := getattr(counts[what], size)):
                yield f"its {what} has {number:,} {size}, not {stated.get(size)}"
    if reference is None and compute.get("verdict"):
        yield f"it has no budget, but the verdict {compute['verdict']!r}"
    if reference is None or (count := counts.get("network")) is None:
        return
    tolerance = budget.get("tolerance") or {}
    judge = Budget(
        reference,
        Cost(**{measure: budget.get(measure) for measure in MEASURES}),
        Tolerance(**{measure: tolerance.get(measure, 0) for measure in MEASURES}),
    )
    ratios = judge.ratios(Cost(count.parameters, count.flops, record["steps"] * record["batch"]))
    if "examples" in ratios and record.get("pretraining"):  # those of phase one may count too
        ratios["examples"] = record.get("compute.reference.examples") or ratios["examples"]
    if compute.get("verdict") != (verdict := judge.verdict(ratios)):
        yield f"its verdict is {compute.get('verdict')!r}, but it is {verdict!r}"


def _evaluated_again(record: Record, data_dir: Path) -> Iterator[str]:
    """Compare the record's answers with those that its checkpoint gives on this machine."""
    if record.path.name != RESULT or (answers := record.answers) is None:
        return
    from lra.results.trained import load_trained

    repeated = load_trained(record, data_dir=data_dir).evaluate()
    changed = int((~np.isclose(repeated.answers, answers.answers, rtol=1e-2, atol=1e-2)).sum())
    if changed > max(1, answers.answers.size // 200):  # other processors round otherwise
        yield f"its checkpoint gives {changed} other answers of {answers.answers.size}"
