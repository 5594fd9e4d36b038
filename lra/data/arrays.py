"""The prepared form of a task: arrays, and a manifest that says what they are.

    <data_dir>/<task>/<preparation id>/
        manifest.json
        {train,val,test}.ids.npy     (N, width) uint8 or uint16, padded with 0; where tokens are C
                                     numbers each, (N, width C) float32
        {train,val,test}.lengths.npy (N,) uint32
        {train,val,test}.labels.npy  of classes (N,) uint8, or one per token (N, tokens) int16,
                                     padded with -100; of labels (N, k) uint8, 0 or 1; of
                                     numbers (N,) or (N, k) float32

A dual task repeats its texts, so it stores each once: texts.ids.npy, texts.lengths.npy, and in
place of a split's ids and lengths {train,val,test}.pairs.npy (N, 2) uint32.

The manifest's `facts` say what the data are, the SHA-256 of every array included; its
`fingerprint` is their hash. `made` says when, by what and from which files. Opening reads the
manifest and looks at file sizes; a run checks the hashes too, as `lra data verify` does.
"""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from lra.base.disk import plain_file
from lra.base.errors import UserError, printable, readable
from lra.data.store import read_errors, sha256
from lra.metrics.metric import Metric, floor_of, named
from lra.metrics.target import IGNORED as IGNORED
from lra.metrics.target import Numbers, Target, target_class

SPLITS = ("train", "val", "test")
IN_WORDS = {"train": "train", "val": "dev", "test": "test"}  # what is printed of a split
FORMAT = 1  # of the folder; a change makes older folders invalid
MANIFEST = "manifest.json"
QUANTILES = {"min": 0, "5%": 0.05, "25%": 0.25, "median": 0.5, "75%": 0.75, "95%": 0.95, "max": 1}
BLOCK = 2**24  # bytes read at once where a whole split is read


class Scale(NamedTuple):
    """By what numbers are read, one of each for every channel: (x - centre) / spread."""

    centre: Sequence[float]
    spread: Sequence[float]


class Layout:
    """The form of a task's examples. Ids are 0..vocab-1 and 0 is padding (a grey level too,
    where the task is an image)."""

    name: str
    classes: int
    vocab: int
    stack: int = 1  # ids per token, whose embeddings are added
    channels: int = 0  # numbers of a token, in place of an id; 0: ids
    per_token: ClassVar[bool] = False  # a label per token, IGNORED where none is scored
    dual: ClassVar[bool] = False  # an example is a pair of sequences
    causal: bool = False  # no token may see what comes behind it
    grid: tuple[int, int] | None = None  # (rows, columns) of an image
    # How its inputs are read as numbers (protocol.style.input); None: its ids are no quantities
    scale: Scale | None = None
    numeric: bool = False  # they are, whatever the protocol says
    # What is asked of an example (lra/metrics/target.py); `classes` counts labels or numbers too.
    asks: str = "classes"
    centre: Sequence[float] = (0.0,)  # of numbers: their mean and standard deviation in training,
    spread: Sequence[float] = (1.0,)  # one of each, or one per column
    # The first is the score; none: the usual one of what is asked.
    metrics: ClassVar[Sequence[Any]] = ()

    @property
    def target(self) -> Target:
        """Build what the task asks, with its loss."""
        made = target_class(self.asks)
        if made is Numbers:
            return Numbers(self.classes, self.centre, self.spread)
        return made(self.classes)

    @property
    def per_place(self) -> int:
        """Count what is stored of one place: an id, or the numbers of a token."""
        return self.channels or 1

    @property
    def metric_names(self) -> list[str]:
        return named(self.metrics, self.target)

    def label_form(self, width: int) -> tuple[tuple[int, ...], type[np.generic]]:
        """Give shape and type of what is stored of an example's label."""
        if self.asks == "numbers":
            return (self.classes,) if self.classes > 1 else (), np.float32
        if self.asks == "labels":
            return (self.classes,), np.uint8
        return ((width // self.stack,), np.int16) if self.per_token else ((), np.uint8)

    def describe_target(self) -> dict[str, Any]:
        """Give what a record says of what is asked; of classes nothing, for they need no more."""
        if self.asks == "classes":
            return {}
        facts: dict[str, Any] = {"name": self.asks, "outputs": self.classes}
        if isinstance(target := self.target, Numbers):
            facts |= {"centre": target.centre.tolist(), "spread": target.spread.tolist()}
        return {"target": facts}


# (n,) of any length, or (n, channels) numbers; a pair for a dual task
Ids = np.ndarray | tuple[np.ndarray, np.ndarray]


class Example(NamedTuple):
    """One example of a task."""

    ids: Ids  # of its tokens; of a pair of sequences two
    label: float | np.ndarray  # one per token, or a row, where the layout says so


class Rows:
    """Rows of a two-dimensional .npy file, read by position and not through a memory map: mapped
    pages count as the process's memory until the whole file does, and a disk error under a map is
    a dead process."""

    def __init__(self, path: Path):
        self.path = path
        with path.open("rb") as file:
            np.lib.format.read_magic(file)  # version 1.0, which ArrayFile writes
            self.shape, _, self.dtype = np.lib.format.read_array_header_1_0(file)
            self._start = file.tell()
            self._handle = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._handle)
        self._stride = self.shape[1] * self.dtype.itemsize

    def __reduce__(self) -> tuple[type[Rows], tuple[Path]]:
        return Rows, (self.path,)

    def __getitem__(self, at: tuple[np.ndarray, slice]) -> np.ndarray:
        """Read `rows[index, :columns]`, as an array in memory gives it."""
        index, columns = at
        out = np.empty((len(index), min(columns.stop, self.shape[1])), self.dtype)
        wanted = out.shape[1] * self.dtype.itemsize
        for row, target in zip(index.tolist(), out, strict=True):
            if os.preadv(self._handle, [target], self._start + row * self._stride) != wanted:
                raise UserError(f"{self.path} is damaged: it ends within row {row}")
        return out


@dataclass(eq=False)
class Split:
    name: str
    layout: Layout
    width: int
    _ids: Rows | np.ndarray
    _lengths: np.ndarray
    labels: np.ndarray
    _pairs: np.ndarray | None  # of a dual task, the rows of its texts

    @classmethod
    def open(cls, name: str, layout: Layout, width: int, folder: Path) -> Split:
        def mapped(array: str) -> np.ndarray:
            return np.load(folder / f"{array}.npy", mmap_mode="r")

        store = "texts" if layout.dual else name
        ids, lengths = Rows(folder / f"{store}.ids.npy"), mapped(f"{store}.lengths")
        pairs = mapped(f"{name}.pairs") if layout.dual else None
        return cls(name, layout, width, ids, lengths, mapped(f"{name}.labels"), pairs)

    @classmethod
    def held(cls, layout: Layout, width: int, examples: Sequence[Ids]) -> Split:
        texts = [ids for example in examples for ids in (example if layout.dual else [example])]
        kind = np.float32 if layout.channels else np.int64
        rows = np.zeros((len(texts), width * layout.per_place), kind)
        for row, ids in zip(rows, texts, strict=True):
            row[: layout.per_place * len(ids)] = np.ravel(ids[:width])
        lengths = np.array([min(len(ids), width) for ids in texts])
        shape, _ = layout.label_form(width)
        unknown = IGNORED if layout.asks == "classes" else np.nan
        labels = np.full((len(examples), *shape), unknown)
        pairs = np.arange(len(texts)).reshape(-1, 2) if layout.dual else None
        return cls("given", layout, width, rows, lengths, labels, pairs)

    def sequences(self, every: int, *, held: bool) -> Split:
        """Give its single sequences (of a dual task the texts of its pairs), each once and without
        labels: one in `every` (`held`), or the others."""
        rows = np.arange(len(self)) if self._pairs is None else np.unique(self._pairs)
        rows = rows[::every] if held else np.delete(rows, slice(None, None, every))
        labels = np.full(len(rows), IGNORED)
        return replace(self, name=f"{self.name} inputs", labels=labels, _pairs=rows)

    def first(self, n: int) -> Split:
        """Give its first examples alone."""
        rows = np.arange(len(self)) if self._pairs is None else self._pairs
        return replace(self, labels=self.labels[:n], _pairs=rows[:n])

    def __len__(self) -> int:
        return len(self.labels)

    def scored_labels(self) -> np.ndarray:
        """Read the labels that are scored: (n,), or a row for each example."""
        labels = np.asarray(self.labels)
        return labels[self.layout.target.scored(labels)]

    @property
    def texts(self) -> int:
        """Count the stored texts; a dual task repeats them in its examples."""
        return len(self._lengths)

    def rows(self, index: np.ndarray) -> np.ndarray:
        """Give the numbers of the texts of these examples: (B,), or (B, 2) of a dual task."""
        return index if self._pairs is None else self._pairs[index]

    def stored(self, rows: np.ndarray) -> np.ndarray:
        """Read texts by their numbers, at full width."""
        return self._shaped(self._ids[rows, : self.width * self.layout.per_place])

    def _shaped(self, stored: np.ndarray) -> np.ndarray:
        """Give numbers their channels: (n, width) of ids, or (n, width, channels)."""
        channels = self.layout.channels
        return stored.reshape(len(stored), -1, channels) if channels else stored

    def lengths(self, index: np.ndarray) -> np.ndarray:
        return self._lengths[self.rows(index)]

    def ids(self, index: np.ndarray, columns: int | None = None) -> np.ndarray:
        """Read the first columns: (B, columns), or (B, 2, columns) of a dual task, or numbers
        (B, columns, channels)."""
        columns = min(self.width if columns is None else columns, self.width)
        rows = self.rows(index)
        read = self._shaped(self._ids[rows.ravel(), : columns * self.layout.per_place])
        return read.reshape(*rows.shape, *read.shape[1:])

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Read all (ids, lengths) in order, in blocks of some megabytes."""
        stored = self.width * self.layout.per_place * self._ids.dtype.itemsize
        rows = max(1, BLOCK // (stored * (1 + self.layout.dual)))
        for start in range(0, len(self), rows):
            index = np.arange(start, min(start + rows, len(self)))
            yield self.ids(index), self.lengths(index)


class Prepared:
    """A prepared task on disk; its arrays are read on demand."""

    def __init__(self, folder: Path, manifest: dict[str, Any], layout: Layout):
        self.folder, self.manifest, self.layout = folder, manifest, layout
        self.facts: dict[str, Any] = manifest["facts"]
        self.fingerprint: str = manifest["fingerprint"]
        for name, facts in self.facts["arrays"].items():
            path = folder / f"{name}.npy"
            size = path.stat().st_size if path.exists() else None
            if size != facts["bytes"]:
                state = "missing" if size is None else f"damaged: {size:,} bytes found"
                raise UserError(
                    f"{path} is {state}, {facts['bytes']:,} bytes expected; {remedy(manifest)}"
                )
        with readable(folder, remedy(manifest)):
            self._splits = {s: Split.open(s, layout, self.facts["width"], folder) for s in SPLITS}

    def split(self, name: str) -> Split:
        return self._splits[name]

    def check_hashes(self) -> None:
        """Refuse arrays that are not what the manifest says: a run begins with this."""
        for array, facts in self.facts["arrays"].items():
            if sha256(path := self.folder / f"{array}.npy") != facts["sha256"]:
                raise UserError(
                    f"{path} has changed since it was prepared: its content is not that of the "
                    f"fingerprint {self.fingerprint}; {remedy(self.manifest)}"
                )

    def floor(self, metric: Metric) -> float:
        """Score on test the one answer to everything that is best in training."""
        train, test = (self.split(split).scored_labels() for split in ("train", "test"))
        return floor_of(metric, train, test, self.layout.target)

    def summary(self) -> dict[str, Any]:
        """Collect what a run's record holds of its data."""
        keys = ("source", "provenance", "options", "width", "versions", "notes")
        return {
            "fingerprint": self.fingerprint,
            **{key: self.facts[key] for key in keys},
            **self.layout.describe_target(),
            "examples": {s: self.facts["splits"][s]["examples"] for s in SPLITS},
            "truncated": {s: self.facts["splits"][s]["truncated"] for s in SPLITS},
        }

    def describe(self) -> str:
        sizes = " / ".join(f"{self.facts['splits'][s]['examples']:,}" for s in SPLITS)
        facts = f"{self.facts['provenance']}, {sizes} examples, fingerprint {self.fingerprint}"
        return printable(facts)


def digest_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def manifest_text(facts: dict[str, Any], made: dict[str, Any]) -> str:
    """Write the file's exact content; `checksum` covers what the fingerprint does not."""
    manifest = {
        "format": FORMAT,
        "fingerprint": digest_of(facts)[:16],
        "facts": facts,
        "made": made,
    }
    return json.dumps(manifest | {"checksum": digest_of(manifest)}, indent=1) + "\n"


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    with read_errors(path):
        text = plain_file(path).read_bytes()
    try:
        manifest = json.loads(text)
        if text != manifest_text(manifest["facts"], manifest["made"]).encode():
            raise ValueError("its checksum is not that of its content")
        task, width = (manifest["facts"][key] for key in ("task", "width"))
        if not isinstance(task, str) or type(width) is not int or width < 1:
            raise ValueError(f"it is of task {task!r:.40} with the width {width!r:.40}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path} is damaged or unreadable ({error}): remove {folder} and prepare again"
        ) from error
    return cast(dict[str, Any], manifest)


def remedy(manifest: dict[str, Any]) -> str:
    return f"prepare it again with `{manifest['made']['command']} --force`"
