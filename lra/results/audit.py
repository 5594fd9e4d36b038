"""`lra records check`: what the numbers of records follow from, and which cannot be right.

A record is *proven* if its accuracy and loss follow from its answers and the answers' labels are
those of the prepared data; *recomputed* if they follow from the answers, but the data are not at
hand; *trusted* if it has no answers. docs/results.md says what this does and does not show.
"""

from __future__ import annotations

import itertools
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from lra.base.config import UserError
from lra.data.arrays import IGNORED
from lra.results.record import CONVERSION, TRAINING, Record
from lra.runs.answers import Answers
from lra.runs.folder import RESULT

PROVEN, RECOMPUTED, TRUSTED = "proven", "recomputed", "trusted"


def refuse_contradictions(records: Sequence[Record]) -> None:
    """UserError with every record whose numbers contradict each other or its answers."""
    problems = [(r, problem) for r in records for problem in _contradictions(r)]
    labels_of: dict[tuple[str, int], str] = {}
    for r in records:
        if labels := r.get("answers.labels"):
            first = labels_of.setdefault((r["data.fingerprint"], r["test.examples"]), labels)
            if labels != first:
                problems.append((r, "its labels are not those of other runs on the same data"))
    _refuse(problems)


def check_records(
    records: Sequence[Record], data_dir: Path, *, reevaluate: bool = False
) -> Counter[str]:
    """Make every check, the slow ones too, and count records proven, recomputed and trusted."""
    refuse_contradictions(records)
    counts: Counter[str] = Counter()
    problems: list[tuple[Record, str]] = []
    for place, group in itertools.groupby(sorted(records, key=_place), _place):
        inside = list(group)
        print(f"{place}: {len(inside)} records", flush=True)
        for record in inside:
            labels = _labels_of(record, data_dir)
            problems += [(record, problem) for problem in (*_score(record), *_parameters(record))]
            if reevaluate:
                problems += [(record, problem) for problem in _evaluated_again(record, data_dir)]
            if labels is not None and labels != record.get("answers.labels", labels):
                problems.append((record, "its labels are not those of the prepared data"))
            answered = record.answers is not None
            counts[(PROVEN if labels else RECOMPUTED) if answered else TRUSTED] += 1
    _refuse(problems)
    return counts


def _place(record: Record) -> str:
    """Name a file of a sweep, or the folder of the runs of one attention."""
    return str(record.path if record.path.name != RESULT else record.path.parents[2])


def _refuse(problems: Sequence[tuple[Record, str]]) -> None:
    if problems:
        lines = [f"{record.where}: {problem}" for record, problem in problems]
        raise UserError("records that cannot be right:\n  " + "\n  ".join(lines))


# ---------------------------------------------------------------------- from the record alone


def _contradictions(record: Record) -> Iterator[str]:
    if record.kind == TRAINING:
        yield from _training(record)
    finished = record.finished
    if finished is not None and finished > datetime.now(UTC) + timedelta(days=1):
        yield f"it finished in the future, at {finished}"


def _training(record: Record) -> Iterator[str]:
    if (answers := record.answers) is not None:
        yield from _differ("test accuracy", record["test.accuracy"], answers.accuracy, 1e-6)
        if (loss := answers.loss) is not None:
            yield from _differ("test loss", record["test.loss"], loss, 2e-3 * (1 + loss))
        predicted = record.get("test.predicted") or []
        counted = np.bincount(answers.answers, minlength=len(predicted)).tolist()
        if predicted and predicted != counted:
            yield f"its answers are {counted} per class, but it says {predicted}"
    curve, steps = record.get("curve") or [], record["steps"]
    if curve:
        best = max(accuracy for _, accuracy in curve)
        if record.get("dev.accuracy") is not None:
            yield from _differ("best dev accuracy", record["dev.accuracy"], best, 2e-6)
        if any(a >= b for (a, _), (b, _) in itertools.pairwise(curve)):
            yield "the steps of its curve do not increase"
        if curve[-1][0] != steps:
            yield f"its curve ends at step {curve[-1][0]:.0f} of {steps}"
    if not record.get("test.step", 0) <= steps:
        yield f"its checkpoint is of step {record['test.step']}, but it has {steps} steps"
    done = record["steps_per_second"] * (record.get("seconds.training") or 0)
    if done > steps * 1.01 + 1:
        yield f"its speed and time make {done:.0f} steps, but it has {steps}"


def _differ(what: str, stated: float, computed: float, tolerance: float) -> Iterator[str]:
    if not math.isclose(stated, computed, rel_tol=0, abs_tol=tolerance):
        yield f"its {what} is {stated:.6g}, but {computed:.6g} follows from what is beside it"


# ---------------------------------------------------------------------- with data and network


def _score(record: Record) -> Iterator[str]:
    """Compute a conversion's score again by the metric of its task."""
    answers = record.answers
    if record.kind != CONVERSION or answers is None:
        return
    import torch

    from luna.convert import tasks

    metric = tasks.get(record["task"]).metric
    score = metric(torch.from_numpy(answers.answers), torch.from_numpy(answers.labels))["score"]
    yield from _differ("score", record["score"], score, 1e-6)


def _labels_of(record: Record, data_dir: Path) -> str | None:
    """Return the digest of the labels that a training run was tested on, from prepared arrays."""
    from lra.data.prepare import with_fingerprint

    if record.kind == CONVERSION:
        return None
    prepared = with_fingerprint(data_dir, record["task"], record["data.fingerprint"])
    if prepared is None or (answers := record.answers) is None:
        return None
    labels = np.asarray(prepared.split("test").labels)
    labels = labels[labels != IGNORED][: len(answers.labels)]
    return Answers(labels, labels.astype(answers.labels.dtype)).labels_digest


def _parameters(record: Record) -> Iterator[str]:
    """Count the parameters of the network that the record's command builds, as long as today's
    configs give the command the same settings."""
    if (run := _composed(record)) is None:
        return
    from lra.compute.count import build

    network = build(run, "meta")
    counted = sum(p.numel() for p in network.parameters() if p.requires_grad)
    if counted != record["compute.parameters"]:
        yield f"its settings give {counted:,} parameters, not {record['compute.parameters']:,}"


def _composed(record: Record) -> Any:
    """Return the run of the record's command, unless it now means another run."""
    from lra.compute.gate import with_solved_options
    from lra.settings.compose import compose

    words = shlex.split(record.get("command") or "")
    if words[:2] != ["lra", "train"]:
        return None
    try:
        run = with_solved_options(compose(words[2:]))
    except UserError:
        return None
    return run if run.experiment.settings() == record["settings"] else None


def _evaluated_again(record: Record, data_dir: Path) -> Iterator[str]:
    """Compare the record's answers with those that its checkpoint gives on this machine."""
    checkpoint = record.path.parent / "checkpoints" / f"{record.get('test.select')}.ckpt"
    if record.path.name != RESULT or not checkpoint.exists() or (answers := record.answers) is None:
        return
    from lra.training.trained import load_trained

    repeated = load_trained(record.folder, data_dir=data_dir).evaluate()
    changed = int((repeated.answers != answers.answers).sum())
    if changed > max(1, len(answers.labels) // 200):  # other processors round otherwise
        yield f"its checkpoint gives {changed} other answers of {len(answers.labels)}"
