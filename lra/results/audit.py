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

PROVEN, RECOMPUTED, TRUSTED = "proven", "recomputed", "trusted"


def refuse(records: Sequence[Record]) -> None:
    """UserError with every record whose numbers contradict each other or its answers."""
    wrong = [f"{r.path}: {p}" for r in records for p in _problems(r)]
    known: dict[tuple[str, int], str] = {}
    for r in records:
        if labels := r.get("answers.labels"):
            first = known.setdefault((r["data.fingerprint"], r["test.examples"]), labels)
            if labels != first:
                wrong.append(f"{r.path}: its labels are not those of other runs on the same data")
    if wrong:
        raise UserError("records that cannot be right:\n  " + "\n  ".join(wrong))


def check(records: Sequence[Record], data_dir: Path, *, reevaluate: bool = False) -> Counter[str]:
    """Every check, the slow ones too; how many records are proven, recomputed and trusted."""
    refuse(records)
    found: Counter[str] = Counter()
    wrong = []
    for record in records:
        problems = [
            *_score(record),
            *_counts(record),
            *(_again(record, data_dir) if reevaluate else []),
        ]
        labels = _labels_of(record, data_dir)
        if labels is not None and labels != record.get("answers.labels", labels):
            problems.append("its labels are not those of the prepared data")
        wrong += [f"{record.path}: {problem}" for problem in problems]
        has = record.answers is not None
        found[(PROVEN if labels else RECOMPUTED) if has else TRUSTED] += 1
    if wrong:
        raise UserError("records that cannot be right:\n  " + "\n  ".join(wrong))
    return found


# ---------------------------------------------------------------------- from the record alone


def _problems(record: Record) -> Iterator[str]:
    if record.kind == TRAINING:
        yield from _training(record)
    finished = record.finished
    if finished is not None and finished > datetime.now(UTC) + timedelta(days=1):
        yield f"it finished in the future, at {finished}"


def _training(record: Record) -> Iterator[str]:
    if (given := record.answers) is not None:
        yield from _differ("test accuracy", record["test.accuracy"], given.accuracy, 1e-6)
        if (loss := given.loss) is not None:
            yield from _differ("test loss", record["test.loss"], loss, 2e-3 * (1 + loss))
        predicted = record.get("test.predicted") or []
        counted = np.bincount(given.answers, minlength=len(predicted)).tolist()
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


def _differ(what: str, stated: float, found: float, tolerance: float) -> Iterator[str]:
    if not math.isclose(stated, found, rel_tol=0, abs_tol=tolerance):
        yield f"its {what} is {stated:.6g}, but {found:.6g} follows from what is beside it"


# ---------------------------------------------------------------------- with data and network


def _score(record: Record) -> Iterator[str]:
    """A conversion's score, recomputed by the metric of its task."""
    given = record.answers
    if record.kind != CONVERSION or given is None:
        return
    import torch

    from luna.convert import tasks

    metric = tasks.get(record["task"]).metric
    found = metric(torch.from_numpy(given.answers), torch.from_numpy(given.labels))["score"]
    yield from _differ("score", record["score"], found, 1e-6)


def _labels_of(record: Record, data_dir: Path) -> str | None:
    """The digest of the labels that a training run was tested on, from the prepared arrays."""
    from lra.data.prepare import with_fingerprint

    if record.kind == CONVERSION:
        return None
    prepared = with_fingerprint(data_dir, record["task"], record["data.fingerprint"])
    if prepared is None or (given := record.answers) is None:
        return None
    labels = np.asarray(prepared.split("test").labels)
    labels = labels[labels != IGNORED][: len(given.labels)]
    return Answers(labels, labels.astype(given.labels.dtype)).labels_digest


def _counts(record: Record) -> Iterator[str]:
    """Parameters counted again in the network that the record's command builds, as long as today's
    configs give the command the same settings."""
    if (run := _composed(record)) is None:
        return
    from lra.compute.count import build

    network = build(run, "meta")
    counted = sum(p.numel() for p in network.parameters() if p.requires_grad)
    if counted != record["compute.parameters"]:
        yield f"its settings give {counted:,} parameters, not {record['compute.parameters']:,}"


def _composed(record: Record) -> Any:
    """The run of the record's command; None without one, and where it now means another run."""
    from lra.compute.gate import with_solved_options
    from lra.runs.folder import settings
    from lra.settings.compose import compose

    words = shlex.split(record.get("command") or "")
    if words[:2] != ["lra", "train"]:
        return None
    try:
        run = with_solved_options(compose(words[2:]))
    except UserError:
        return None
    return run if settings(run) == record["settings"] else None


def _again(record: Record, data_dir: Path) -> Iterator[str]:
    """The answers of the run's checkpoint, computed again on this machine."""
    checkpoint = record.path.parent / "checkpoints" / f"{record.get('test.select')}.ckpt"
    if not checkpoint.exists() or (given := record.answers) is None:
        return
    from lra.training.trained import load

    found = load(record.folder, data_dir=data_dir).evaluate()
    changed = int((found.answers != given.answers).sum())
    if changed > max(1, len(given.labels) // 200):  # other processors round otherwise
        yield f"its checkpoint gives {changed} other answers of {len(given.labels)}"
