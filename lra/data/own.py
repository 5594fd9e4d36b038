"""Tasks that are not ours: a registered class, an installed package, or data in memory.

A class needs its facts and `splits`; Task has a default for everything else. docs/tasks.md shows
one of each kind.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from lra.base import code
from lra.base.config import UserError
from lra.data import byte_ids
from lra.data.arrays import Example
from lra.data.task import About, Job, RawSplit, Source, Task, TaskOptions

ENTRY_POINTS = "lra.tasks"
CONSTANTS = (bool, int, float, str, bytes, tuple, list, dict, type(None))
HELD_OUT = 0.1  # of the training examples, where there is no val or test split
_registered: dict[str, type[Task]] = {}
T = TypeVar("T", bound=type[Task])


def register(task: T) -> T:
    """Make a class known as `task=<name>`: a decorator. Its data are prepared anew when its code
    changes."""
    check(task)
    known = task.encoding.get("code", "")
    if known in ("", *(getattr(base, "encoding", {}).get("code") for base in task.__mro__[1:])):
        # Both: a parent's hash misses this class, and this one may miss the parent (in a notebook).
        task.encoding = {**task.encoding, "code": known + _hash_class(task)}
    _registered[task.name] = task
    return task


def _hash_class(task: type[Task]) -> str:
    """Hash the module of a class with what it imports of its own package; of a class that was typed
    into a notebook, for which Python finds no file, hash its functions and constants."""
    if code.find_source(task.__module__) is not None:
        return code.hash_modules(task.__module__)
    lines = []
    for name, value in vars(task).items():
        function = getattr(value, "__func__", getattr(value, "fget", value))  # of a decorator
        if inspect.isfunction(function):
            try:
                lines.append(textwrap.dedent(inspect.getsource(function)))
            except OSError as error:
                raise UserError(
                    f"the source of {task.__name__} cannot be found: define it in a file or a "
                    "notebook"
                ) from error
        elif not name.startswith("__") and isinstance(value, CONSTANTS):
            lines.append(f"{name} = {value!r}")
    return code.parse("\n".join(lines).encode())[0]


def names() -> list[str]:
    return sorted({*_registered, *_entries()})


def get(name: str) -> type[Task] | None:
    """The class of that name; an installed one is imported now."""
    entry = _entries().get(name)
    if name not in _registered and entry is not None:
        try:
            register(entry.load())
        except (ImportError, AttributeError) as error:
            raise UserError(
                f"task '{name}' of {entry.value} cannot be imported: {error}"
            ) from error
    return _registered.get(name)


def check(task: type[Task]) -> None:
    """UserError for a class that lacks what a task needs."""
    name = getattr(task, "name", "")
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UserError(
            f"the name of a task is lower-case letters, digits and underscores, not {name!r}"
        )
    from lra.data import ours

    if name in ours():
        raise UserError(f"there is a task '{name}' already; choose another name")
    missing = [key for key in ("classes", "vocab", "max_length") if not hasattr(task, key)]
    if missing:
        raise UserError(f"task '{name}' lacks {', '.join(missing)}")
    if not dataclasses.is_dataclass(task.Options) or not issubclass(task.Options, TaskOptions):
        raise UserError(f"{name}.Options must be a dataclass that extends lra.data.TaskOptions")
    own = [f for f in dataclasses.fields(task.Options) if f.name not in ("name", "source")]
    if open_ := [f.name for f in own if f.default is f.default_factory is dataclasses.MISSING]:
        raise UserError(f"{name}.Options.{open_[0]} needs a default")


def _entries() -> dict[str, importlib.metadata.EntryPoint]:
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}


# ---------------------------------------------------------------------- data in memory


def from_arrays(
    name: str,
    train: tuple[Sequence[Any], Sequence[Any]],
    val: tuple[Sequence[Any], Sequence[Any]] | None = None,
    test: tuple[Sequence[Any], Sequence[Any]] | None = None,
    *,
    grid: tuple[int, int] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> type[Task]:
    """Register examples and labels as `task=<name>`, in this process: rows of ids, texts, grey
    pictures (with `grid`), or pairs of them; a label per example, or a list of one per id.

    Without `val` or `test` a tenth of the training examples is held out, drawn with a fixed seed.

        lra.data.from_arrays("reviews", (texts, labels), settings={"steps": 1000})
        lra.train(lra.compose(["task=reviews", "attention=luna"]))
    """
    parts = _split({"train": train, "val": val, "test": test})
    first = parts["train"][0][0]
    dual = _is_pair(first, grid)
    dimensions = {y.ndim for _, labels in parts.values() for y in labels}
    if dimensions not in ({0}, {1}):
        raise UserError("give every example one label, or every one a list of one per id")
    read = {s: [_ids(x, dual) for x in examples] for s, (examples, _) in parts.items()}
    flat = [ids for xs in read.values() for x in xs for ids in (x if dual else [x])]
    text = any(isinstance(x, str) for x in (first if dual else [first]))
    facts = {
        "name": name,
        "title": "data given from memory",
        "classes": 1 + max(int(np.max(y)) for _, labels in parts.values() for y in labels),
        "vocab": byte_ids.VOCAB if text else 256 if grid else 1 + max(int(x.max()) for x in flat),
        "max_length": max(len(x) for x in flat),
        "dual": dual,
        "per_token": dimensions == {1},
        "grid": grid,
        "settings": dict(settings or {}),
        "encoding": {"code": _digest(parts, read)},
        "parts": {s: list(map(Example, read[s], labels)) for s, (_, labels) in parts.items()},
        "text": text,
    }
    return register(type("FromArrays", (InMemory,), facts))


def from_hf(
    name: str,
    dataset: Mapping[str, Any],
    *,
    text: str | tuple[str, str] = "text",
    label: str = "label",
    **others: Any,
) -> type[Task]:
    """The same from a `datasets.DatasetDict` (or any mapping from split to columns): the columns of
    texts, or of ids, or of two texts, and of labels. The split `validation` is val.

        rte = datasets.load_dataset("glue", "rte")
        lra.data.from_hf("rte", rte, text=("sentence1", "sentence2"))
    """
    columns = (text,) if isinstance(text, str) else text
    given: dict[str, Any] = {}
    for split in ("train", "val", "validation", "test"):
        if split not in dataset:
            continue
        part = dataset[split]
        try:
            found = [list(part[column]) for column in (*columns, label)]
        except KeyError as error:
            raise UserError(f"split {split} has no column {error}") from error
        *texts, labels = found
        examples = texts[0] if len(texts) == 1 else list(zip(*texts, strict=True))
        # -1 stands for the hidden labels of a test set
        if all(_label(y).min() >= 0 for y in labels):
            given[split.replace("validation", "val")] = (examples, labels)
    if "train" not in given:
        raise UserError(f"the dataset has no split train with labels, only {', '.join(dataset)}")
    return from_arrays(name, **given, **others)


class InMemory(Task):
    """A task whose examples are held in memory, by the process that registered it."""

    sources: ClassVar = {"memory": Source("given from memory", {"format": "1"})}
    about = About("Given from memory by the user.", "Not stated.", "As given.", ())
    Options = TaskOptions
    parts: ClassVar[dict[str, list[Example]]]
    text: ClassVar[bool]

    def splits(self, options: TaskOptions, job: Job) -> list[RawSplit]:
        return [RawSplit(s, part, len(part)) for s, part in self.parts.items()]

    def tokenize(self, text: str) -> np.ndarray:
        return byte_ids.of_text(text) if self.text else super().tokenize(text)

    def decode(self, ids: np.ndarray) -> str:
        return byte_ids.decode(ids) if self.text else super().decode(ids)


def _is_pair(example: Any, grid: tuple[int, int] | None) -> bool:
    if not isinstance(example, tuple | list) or not example:
        return False
    if grid:  # a picture may be a list of rows
        return len(example) == 2 and np.size(example[0]) == grid[0] * grid[1]
    return isinstance(example[0], str | Sequence | np.ndarray)


def _label(label: Any) -> np.ndarray:
    values = np.asarray(label)
    if values.dtype.kind not in "biuf" or not values.size or (values % 1).any():
        raise UserError(
            "labels must be whole numbers, or lists of them: give classes as 0, 1 and so on"
        )
    return values.astype(np.int64)


def _ids(example: Any, dual: bool) -> Any:
    if dual:
        if isinstance(example, str) or len(example) != 2:
            raise UserError("an example is no pair, but the first one is: give two of each")
        first, second = example
        return _ids(first, False), _ids(second, False)
    if isinstance(example, str):
        return byte_ids.of_text(example)
    ids = np.asarray(example).ravel()
    if ids.dtype.kind not in "iu" or not len(ids) or ids.min() < 0:
        raise UserError("an example must be a text, or one or more whole numbers from 0 on")
    return ids


def _split(given: dict[str, Any]) -> dict[str, tuple[list[Any], list[Any]]]:
    """Lists of examples and labels of all three splits; missing ones are drawn from train."""
    parts = {
        s: (list(part[0]), [_label(y) for y in part[1]])
        for s, part in given.items()
        if part is not None
    }
    for split, (examples, labels) in parts.items():
        if len(examples) != len(labels) or not examples:
            raise UserError(
                f"{split} has {len(examples)} examples and {len(labels)} labels: give as many of "
                "both, and at least one"
            )
    examples, labels = parts["train"]
    order = np.random.default_rng(0).permutation(len(examples)).tolist()
    for split in ("val", "test"):
        if split not in parts:
            n = max(1, round(HELD_OUT * len(examples)))
            held, order = order[:n], order[n:]
            parts[split] = [examples[i] for i in held], [labels[i] for i in held]
    if len(order) < len(examples):
        if not order:
            raise UserError("there are too few training examples to hold a tenth of them out")
        parts["train"] = [examples[i] for i in sorted(order)], [labels[i] for i in sorted(order)]
    return {s: parts[s] for s in ("train", "val", "test")}


def _digest(parts: Mapping[str, Any], read: Mapping[str, Iterable[Any]]) -> str:
    """The hash of all ids and labels."""
    found = hashlib.sha256()
    for split, examples in read.items():
        for x in examples:
            for ids in x if isinstance(x, tuple) else [x]:
                found.update(ids.astype("<i8").tobytes() + b"|")
        for y in parts[split][1]:
            found.update(np.asarray(y, "<i8").tobytes() + b";")
    return found.hexdigest()[:16]
