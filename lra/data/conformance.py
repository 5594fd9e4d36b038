"""Checks that any task must pass: `lra data check <task>`. Every line says what holds or fails.

The task is prepared twice below a temporary folder, so a large one needs options that make it
small.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lra.base.config import DataRules, Mask, Pad, UserError
from lra.data import registry
from lra.data.arrays import IGNORED, SPLITS, Prepared, Split
from lra.data.card import data_card
from lra.data.loader import Loader
from lra.data.prepare import prepare
from lra.data.task import Task, TaskOptions
from lra.data.verify import verify


class Finding(NamedTuple):
    holds: bool
    text: str


def findings(options: TaskOptions, max_length: int = 0) -> Iterator[Finding]:
    """Check the task with these options; `max_length` 0 is the task's own."""
    task = registry.of(options)
    length = task.width(options, max_length or task.max_length)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        made = prepare(options, max_length=length, data_dir=first, workers=1)
        again = prepare(options, max_length=length, data_dir=second, workers=2)
        same = made.fingerprint == again.fingerprint
        yield Finding(same, "prepared twice, by one worker and by two, the data are the same")
        wrong = [line.text for line in verify(made.folder) if line.status == "differs"]
        yield Finding(not wrong, "lra data verify finds no difference" + _named(wrong))
        for name in SPLITS:
            yield from _split(task, made.split(name))
        yield from _whole(task, made)
        text = data_card(options, max_length=length, data_dir=Path(first))
        yield Finding(task.name in text, "it has a data card")
        yield from _batches(task, made)


def _split(task: Task, split: Split) -> Iterator[Finding]:
    index = split.sample(200)
    labels = np.asarray(split.labels[index]).astype(np.int64)
    scored = labels[labels != IGNORED]
    inside = bool(len(scored)) and scored.min() >= 0 and scored.max() < task.classes
    yield Finding(inside, f"{split.name}: labels are 0 to {task.classes - 1}")
    if task.per_token:
        per = (labels != IGNORED).reshape(len(labels), -1).any(1)
        yield Finding(bool(per.all()), f"{split.name}: every example has a label at some token")
    undone = []
    for i in index.tolist():
        one = np.array([i])
        rows = zip(split.ids(one).reshape(-1, split.width), split.lengths(one).ravel(), strict=True)
        for ids, n in ((row[:n], n) for row, n in rows):
            shown = task.decode(ids)
            if not shown and n:
                undone.append(f"example {i}")
            if task.grid is None and not _encodes(task, shown, ids):
                undone.append(f"example {i}: its text is encoded to other ids")
    yield Finding(not undone, f"{split.name}: examples can be shown" + _named(undone))


def _encodes(task: Task, shown: str, ids: np.ndarray) -> bool:
    """Check that a text which the task reads becomes its ids; one it does not read is no fault."""
    try:
        return "\\x" in shown or np.array_equal(task.tokenize(shown), ids)  # \\x: cut characters
    except UserError:
        return True


def _whole(task: Task, made: Prepared) -> Iterator[Finding]:
    parts = made.facts["splits"]
    shares = {s: max(parts[s]["labels"]) / sum(parts[s]["labels"]) for s in SPLITS}
    constant = [s for s, share in shares.items() if share == 1]
    yield Finding(not constant, "no split has one label only" + _named(constant))
    shared = {k: n for k, n in made.facts.get("duplicates", {}).items() if "/" in k and n}
    text = ", ".join(f"{k} {n:,}" for k, n in shared.items())
    yield Finding(True, f"examples that occur in two splits: {text or 'none'}")


def _batches(task: Task, made: Prepared) -> Iterator[Finding]:
    width = made.facts["width"]
    rules = DataRules(width, width, Pad.full, Mask.length, task.vocab)
    batch = next(iter(Loader(made.split("train"), 2, rules=rules, steps=1)))
    shape = (2, 2, width) if task.dual else (2, width)
    yield Finding(tuple(batch.ids.shape) == shape, f"batches have the shape {shape}")
    inside = int(batch.ids.min()) >= 0 and int(batch.ids.max()) < task.vocab
    yield Finding(inside, f"ids are 0 to {task.vocab - 1}")


def _named(wrong: list[str]) -> str:
    return f": {wrong[0]}" + (f" and {len(wrong) - 1} more" if wrong[1:] else "") if wrong else ""
