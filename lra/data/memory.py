"""Data in memory as a task: arrays, texts, or a dataset of columns."""

from __future__ import annotations

import hashlib
from abc import ABC
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from lra.base.errors import UserError
from lra.data import labels as given
from lra.data.arrays import SPLITS, Example, Scale
from lra.data.registry import check_class, hash_body, register
from lra.data.statistics import check_metrics, moments
from lra.data.task import ByteTask, Job, RawSplit, Source, Task, TaskOptions, numbers_of
from lra.metrics.metric import Metric, get

HELD_OUT = 0.1  # of the training examples, where there is no val or test split
Part = tuple[Sequence[Any], Sequence[Any]]  # examples and labels


def from_arrays(
    name: str,
    train: Part,
    val: Part | None = None,
    test: Part | None = None,
    *,
    grid: tuple[int, int] | None = None,
    targets: str | None = None,
    metrics: Sequence[str | type[Metric]] = (),
    settings: Mapping[str, Any] | None = None,
) -> type[Task]:
    """Register examples and labels as `task=<name>`, in this process.

    Examples are rows of ids, texts, grey pictures (with `grid`), pairs of them, or rows of floats,
    (tokens,) or (tokens, channels), which the network reads as numbers. Of labels whole numbers are
    classes, floats are numbers to be predicted, rows of whole numbers are a class per id, and other
    rows of 0 and 1 several labels.

    name      lower-case letters, digits and underscores
    train     examples and their labels
    val       the same; None: a tenth of `train`, drawn with a fixed seed
    test      the same; None: another tenth
    grid      rows and columns of a picture
    targets   what labels mean where that is not clear: lra/data/labels.py
    metrics   names or classes, of which the first is the score; none: the usual one
    settings  the task's row of a protocol, such as `steps` and `batch`
    returns   the task, registered

        lra.data.from_arrays("reviews", (texts, labels), settings={"steps": 1000})
        lra.train(lra.compose(["task=reviews", "attention=luna"]))
    """
    for split, part in (("train", train), ("val", val), ("test", test)):
        if part is not None and not (isinstance(part, tuple | list) and len(part) == 2):
            raise UserError(
                f"{split} is examples and their labels, two of them: (examples, labels)"
            )
    parts = _split({"train": train, "val": val, "test": test})
    ids, about = _read({split: examples for split, (examples, _) in parts.items()}, grid)
    counts = None if about["dual"] else [len(x) for of_split in ids.values() for x in of_split]
    kind, by_split = given.decide({s: ys for s, (_, ys) in parts.items()}, counts, targets)
    encoded = {
        split: [Example(x, y) for x, y in zip(ids[split], by_split[split], strict=True)]
        for split in SPLITS
    }
    text = about.pop("text")
    facts = {
        "name": name,
        "title": "data given from memory",
        **given.facts(kind, by_split),
        **about,
        "metrics": metrics if isinstance(metrics, str) else tuple(metrics),
        "grid": grid,
        "settings": dict(settings or {}),
        "encoding": {"code": _digest(encoded, kind), **_metrics_code(metrics)},
        "parts": encoded,
    }
    made = type("FromArrays", (InMemory, ByteTask) if text else (InMemory,), facts)
    check_class(made)
    check_metrics(made(), {split: given.scored(of) for split, of in by_split.items()})
    return register(made)


def from_hf(
    name: str,
    dataset: Mapping[str, Any],
    *,
    text: str | tuple[str, str] = "text",
    label: str | Sequence[str] = "label",
    **others: Any,
) -> type[Task]:
    """Register a `datasets.DatasetDict` as `task=<name>`.

    name     lower-case letters, digits and underscores
    dataset  any mapping from split to columns, also tables of pandas; `validation` is val
    text     the column of texts or of ids, or two of them
    label    the column of labels; several are a row per example
    others   as in `from_arrays`
    returns  the task, registered

        rte = datasets.load_dataset("glue", "rte")
        lra.data.from_hf("rte", rte, text=("sentence1", "sentence2"))
        lra.data.from_hf("stars", {"train": pandas.read_csv("stars.csv")}, label=("plot", "cast"))
    """
    columns = (text,) if isinstance(text, str) else text
    wanted = (label,) if isinstance(label, str) else label
    parts: dict[str, Any] = {}
    for split in ("train", "val", "validation", "test"):
        if split not in dataset:
            continue
        try:
            texts, rows = (
                [list(dataset[split][column]) for column in names] for names in (columns, wanted)
            )
        except KeyError as error:
            raise UserError(f"split {split} has no column {error}") from error
        labels = rows[0] if isinstance(label, str) else list(zip(*rows, strict=True))
        if not given.hidden(labels):
            examples = texts[0] if len(texts) == 1 else list(zip(*texts, strict=True))
            parts[split.replace("validation", "val")] = (examples, labels)
    if "train" not in parts:
        raise UserError(f"the dataset has no split train with labels, only {', '.join(dataset)}")
    return from_arrays(name, **parts, **others)


class InMemory(Task):
    sources: ClassVar = {"memory": Source("given from memory", {"format": "1"})}
    parts: ClassVar[dict[str, list[Example]]]

    def splits(self, options: TaskOptions, job: Job) -> list[RawSplit]:
        return [RawSplit(s, part, len(part)) for s, part in self.parts.items()]


def _read(
    parts: Mapping[str, Sequence[Any]], grid: tuple[int, int] | None
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Give what is stored of all examples, all of the kind of the first one, and what a task says
    of their form."""
    first = parts["train"][0]
    if channels := 0 if grid else _channels(first):
        rows = {s: [numbers_of(x, channels, "an example") for x in of] for s, of in parts.items()}
        return rows, {"text": False, "dual": False, **numeric(rows, channels)}
    dual = _is_pair(first, grid)
    text = isinstance(first, str) or (dual and any(isinstance(side, str) for side in first))
    ids = {split: [_ids(x, dual, text) for x in examples] for split, examples in parts.items()}
    texts: list[Any] = [x for of in ids.values() for pair in of for x in (pair if dual else [pair])]
    return ids, {
        "text": text,
        "dual": dual,
        "vocab": ByteTask.vocab if text else 256 if grid else 1 + int(max(map(np.max, texts))),
        "max_length": grid[0] * grid[1] if grid else max(len(x) for x in texts),
    }


def numeric(by_split: Mapping[str, Sequence[np.ndarray]], channels: int) -> dict[str, Any]:
    """Give what a task says of rows (tokens, channels): it scales them by those of train."""
    centre, spread = moments(np.concatenate(by_split["train"]))
    return {
        "channels": channels,
        "scale": Scale(centre, [x or 1.0 for x in spread]),
        "vocab": 1,  # of padding alone
        "max_length": max(len(x) for of_split in by_split.values() for x in of_split),
    }


def _channels(example: Any) -> int:
    """Count the numbers of a token; 0 where an example is no rows of floats."""
    try:
        rows = np.asarray(example)
    except ValueError:  # a pair of different lengths
        return 0
    if rows.dtype.kind != "f" or not rows.size or rows.ndim not in (1, 2):
        return 0
    return 1 if rows.ndim == 1 else int(rows.shape[1])


def _is_pair(example: Any, grid: tuple[int, int] | None) -> bool:
    if not isinstance(example, tuple | list) or not example:
        return False
    if grid:  # a picture may be a list of rows
        return len(example) == 2 and np.size(example[0]) == grid[0] * grid[1]
    return isinstance(example[0], str | Sequence | np.ndarray)


def _ids(example: Any, dual: bool, text: bool) -> Any:
    if dual:
        if isinstance(example, str) or len(example) != 2:
            raise UserError("an example is no pair, but the first one is: give two of each")
        return tuple(_ids(side, False, text) for side in example)
    if isinstance(example, str) is not text:
        raise UserError("texts and ids are mixed: give one or the other")
    if text:
        return ByteTask().tokenize(example)
    ids = np.asarray(example).ravel()
    if ids.dtype.kind not in "iu" or not len(ids) or ids.min() < 0:
        raise UserError("an example must be a text, or one or more whole numbers from 0 on")
    return ids


def _split(parts: dict[str, Part | None]) -> dict[str, tuple[list[Any], list[Any]]]:
    """List examples and labels of all three splits; missing ones are drawn from train."""
    listed = {
        s: (list(part[0]), list(map(given.read, part[1]))) for s, part in parts.items() if part
    }
    for split, (examples, labels) in listed.items():
        if len(examples) != len(labels) or not examples:
            raise UserError(
                f"{split} has {len(examples)} examples and {len(labels)} labels: give as many of "
                "both, and at least one"
            )
    examples, labels = listed["train"]
    order = np.random.default_rng(0).permutation(len(examples)).tolist()
    drawn = {}
    for split in ("val", "test"):
        if split not in listed:
            n = max(1, round(HELD_OUT * len(examples)))
            drawn[split], order = order[:n], order[n:]
    if not order:
        raise UserError("there are too few training examples to hold a tenth of them out")
    drawn["train"] = sorted(order)
    for split, index in drawn.items():
        listed[split] = [examples[i] for i in index], [labels[i] for i in index]
    return {split: listed[split] for split in SPLITS}


def _digest(parts: Mapping[str, Sequence[Example]], kind: str) -> str:
    classes = kind in ("classes", "tokens")
    digest = hashlib.sha256(b"" if classes else kind.encode())
    for part in parts.values():
        for example in part:
            for ids in example.ids if isinstance(example.ids, tuple) else [example.ids]:
                kind = "<f4" if ids.dtype.kind == "f" else "<i8"
                digest.update(ids.astype(kind).tobytes() + b"|")
        for example in part:
            label = np.asarray(example.label, "<i8" if classes else "<f4")
            digest.update(label.tobytes() + b";")
    return digest.hexdigest()[:16]


def _metrics_code(metrics: Sequence[str | type[Metric]]) -> dict[str, str]:
    """Name the metrics, with the code of one's own: with others a run has other scores."""
    words = []
    for one in () if isinstance(metrics, str) else metrics:
        made = type(get(one)) if isinstance(one, str) else one
        if not isinstance(made, type) or not issubclass(made, Metric):
            continue  # which is refused with the rest of the task
        own = [base for base in made.__mro__ if base.__module__.partition(".")[0] != "lra"]
        code = "".join(hash_body(base) for base in own if base not in (ABC, object))
        words.append(f"{made.name}-{code}" if code else made.name)
    return {"metrics": " ".join(words)} if words else {}
