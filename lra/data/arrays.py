"""The prepared form of a task: integer arrays, and a manifest that says what they are.

    <data_dir>/<task>/<preparation id>/
        manifest.json
        {train,val,test}.ids.npy     (N, width) uint8 or uint16, padded with 0
        {train,val,test}.lengths.npy (N,) uint32
        {train,val,test}.labels.npy  (N,) uint8; one per token: (N, tokens) int16, padded with -100

A dual task repeats its texts, so it stores each once: texts.ids.npy, texts.lengths.npy, and in
place of a split's ids and lengths {train,val,test}.pairs.npy (N, 2) uint32.

The manifest's `facts` say what the data are, the SHA-256 of every array included; its
`fingerprint` is their hash. `made` says when, by what and from which files. Opening reads the
manifest and looks at file sizes; a run checks the hashes too (intact.py), as `lra data verify`
does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lra.base.config import UserError, readable
from lra.data.store import ArrayFile, HeldRows, Rows

SPLITS = ("train", "val", "test")
IGNORED = -100  # label of a token that is not scored, as in torch's cross-entropy
FORMAT = 1  # of the folder; a change makes older folders unreadable
MANIFEST = "manifest.json"
QUANTILES = {"min": 0, "5%": 0.05, "25%": 0.25, "median": 0.5, "75%": 0.75, "95%": 0.95, "max": 1}
BLOCK = 2**24  # bytes read at once where a whole split is read


class Layout:
    """What the examples of a task look like. Ids are 0..vocab-1 and 0 is padding (a grey level too,
    where the task is an image)."""

    name: ClassVar[str]
    classes: int
    vocab: int
    stack: int = 1  # ids per token, whose embeddings are added
    per_token: ClassVar[bool] = False  # a label per token, IGNORED where none is scored
    dual: ClassVar[bool] = False  # an example is a pair of sequences
    grid: ClassVar[tuple[int, int] | None] = None  # (rows, columns) of an image


Ids = np.ndarray | tuple[np.ndarray, np.ndarray]  # of any length; a pair for a dual task


class Example(NamedTuple):
    ids: Ids
    label: int | np.ndarray  # one per token where the layout says so


class Split:
    """One split of a prepared task."""

    def __init__(
        self,
        name: str,
        layout: Layout,
        width: int,
        *,
        ids: Rows | HeldRows,
        lengths: np.ndarray,
        labels: np.ndarray,
        pairs: np.ndarray | None = None,
    ):
        self.name, self.layout, self.width = name, layout, width
        self.labels = labels
        self._ids, self._lengths, self._pairs = ids, lengths, pairs

    @classmethod
    def open(cls, name: str, layout: Layout, width: int, arrays: dict[str, Path]) -> Split:
        """From files, read on demand."""
        store = "texts" if layout.dual else name
        mapped = {
            what: np.load(arrays[f"{part}.{what}"], mmap_mode="r")
            for what, part in {"lengths": store, "labels": name, "pairs": name}.items()
            if what != "pairs" or layout.dual
        }
        return cls(name, layout, width, ids=Rows(arrays[f"{store}.ids"]), **mapped)

    @classmethod
    def held(cls, layout: Layout, width: int, examples: Sequence[Ids]) -> Split:
        """Examples in memory, cut at `width`, without labels."""
        texts = [ids for example in examples for ids in (example if layout.dual else [example])]
        kept = np.zeros((len(texts), width), np.int64)
        for row, ids in zip(kept, texts, strict=True):
            row[: len(ids)] = ids[:width]
        shape = (len(examples), width // layout.stack) if layout.per_token else len(examples)
        return cls(
            "given",
            layout,
            width,
            ids=HeldRows(kept),
            lengths=np.array([min(len(ids), width) for ids in texts]),
            labels=np.full(shape, IGNORED),
            pairs=np.arange(len(texts)).reshape(-1, 2) if layout.dual else None,
        )

    def sequences(self, every: int, *, held: bool) -> Split:
        """Its single sequences, each once and without labels: one in `every` (`held`), or the
        others. Those of a dual task are the texts of its pairs."""
        rows = np.arange(len(self)) if self._pairs is None else np.unique(self._pairs)
        kept = rows[::every] if held else np.delete(rows, slice(None, None, every))
        return Split(
            f"{self.name} inputs",
            self.layout,
            self.width,
            ids=self._ids,
            lengths=self._lengths,
            labels=np.full(len(kept), IGNORED),
            pairs=kept,
        )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def texts(self) -> int:
        """How many are stored; a dual task repeats them in its examples."""
        return len(self._lengths)

    def rows(self, index: np.ndarray) -> np.ndarray:
        """The numbers of the texts of these examples: (B,), or (B, 2) of a dual task. `pairs` says
        which an example has: two, or one of `sequences`."""
        return index if self._pairs is None else self._pairs[index]

    def stored(self, rows: np.ndarray) -> np.ndarray:
        """Texts by their numbers, at full width."""
        return self._ids.take(rows, self.width)

    def lengths(self, index: np.ndarray) -> np.ndarray:
        """(B,), or (B, 2) of a dual task, for the examples of `index`."""
        return self._lengths[self.rows(index)]

    def ids(self, index: np.ndarray, columns: int | None = None) -> np.ndarray:
        """(B, columns), or (B, 2, columns) of a dual task: the first columns, padded with 0."""
        columns = self.width if columns is None else min(columns, self.width)
        if self._pairs is None:
            return self._ids.take(index, columns)
        pairs = self._pairs[index]
        return self._ids.take(pairs.ravel(), columns).reshape(*pairs.shape, columns)

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All (ids, lengths) in order, in blocks of some megabytes."""
        rows = max(1, BLOCK // (self.width * self._ids.dtype.itemsize * (1 + self.layout.dual)))
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
            found = path.stat().st_size if path.exists() else None
            if found != facts["bytes"]:
                state = "missing" if found is None else f"damaged: {found:,} bytes found"
                raise UserError(
                    f"{path} is {state}, {facts['bytes']:,} bytes expected; {remedy(manifest)}"
                )
        arrays = {name: folder / f"{name}.npy" for name in self.facts["arrays"]}
        with readable(folder, remedy(manifest)):
            self._splits = {s: Split.open(s, layout, self.facts["width"], arrays) for s in SPLITS}

    def split(self, name: str) -> Split:
        return self._splits[name]

    def majority(self) -> float:
        """Test accuracy of always answering the most frequent label of the training split."""
        train, test = (np.asarray(self.facts["splits"][s]["labels"]) for s in ("train", "test"))
        return float(test[train.argmax()] / test.sum())

    def summary(self) -> dict[str, Any]:
        """What a run's record keeps of its data."""
        keys = ("source", "provenance", "options", "width", "versions", "notes")
        return {
            "fingerprint": self.fingerprint,
            **{key: self.facts[key] for key in keys},
            "examples": {s: self.facts["splits"][s]["examples"] for s in SPLITS},
            "truncated": {s: self.facts["splits"][s]["truncated"] for s in SPLITS},
            "majority": self.majority(),
        }

    def describe(self) -> str:
        """One line: source, sizes, fingerprint."""
        sizes = " / ".join(f"{self.facts['splits'][s]['examples']:,}" for s in SPLITS)
        return f"{self.facts['provenance']}, {sizes} examples, fingerprint {self.fingerprint}"


class Writer:
    """Turns examples into arrays, one split after the other."""

    def __init__(self, folder: Path, layout: Layout, width: int):
        most = 2**15 if layout.per_token else 2**8  # larger labels would wrap around
        if layout.classes > most or layout.vocab > 2**16:
            raise UserError(
                f"{layout.name} has {layout.classes:,} classes and {layout.vocab:,} different ids, "
                f"but at most {most:,} and 65,536 can be stored: use fewer"
            )
        self.folder, self.layout, self.width = folder, layout, width
        self.truncated = dict.fromkeys(SPLITS, 0)
        self._dtype = np.dtype(np.uint8 if layout.vocab <= 256 else np.uint16)
        self._files: dict[str, ArrayFile] = {}
        self._texts: dict[bytes, int] = {}  # of a dual task: digest -> row

    def add(self, split: str, example: Example) -> None:
        ids, label = example
        labels = np.atleast_1d(label)
        valid = (labels >= 0) & (labels < self.layout.classes) & (labels % 1 == 0)
        if self.layout.per_token:
            valid |= labels == IGNORED
        if not valid.all():
            raise UserError(
                f"an example of {split} has label {labels[~valid][0]}; "
                f"the labels of {self.layout.name} are whole numbers from 0 to "
                f"{self.layout.classes - 1}"
            )
        if self.layout.dual:
            rows = [self._text(split, np.asarray(side)) for side in ids]
            self._file(f"{split}.pairs", (2,), np.uint32).append(np.asarray(rows))
        else:
            self._sequence(split, split, np.asarray(ids))
        if self.layout.per_token:
            row = np.full(self.width // self.layout.stack, IGNORED, np.int16)
            row[: len(labels)] = labels[: len(row)]
            if (row == IGNORED).all():  # the loss of a batch of such examples is nan
                raise UserError(
                    f"an example of {split} has no scored label at its first {len(row)} tokens: "
                    "leave it out"
                )
            self._file(f"{split}.labels", row.shape, np.int16).append(row)
        else:
            self._file(f"{split}.labels", (), np.uint8).append(labels[0])

    def close(self) -> dict[str, dict[str, Any]]:
        """Facts of every array, by name."""
        facts = {name: file.close() for name, file in sorted(self._files.items())}
        empty = [s for s in SPLITS if f"{s}.labels" not in facts]
        if empty:
            raise UserError(f"{self.layout.name} has no examples for {' and '.join(empty)}")
        return facts

    def abandon(self) -> None:
        for file in self._files.values():
            file.abandon()

    def _text(self, split: str, ids: np.ndarray) -> int:
        kept = np.ascontiguousarray(ids[: self.width], self._dtype)
        digest = hashlib.blake2b(kept.tobytes(), digest_size=16).digest()
        if digest not in self._texts:
            self._texts[digest] = len(self._texts)
            self._sequence(split, "texts", ids)
        elif len(ids) > self.width:
            self.truncated[split] += 1
        return self._texts[digest]

    def _sequence(self, split: str, store: str, ids: np.ndarray) -> None:
        if self.layout.grid is not None and len(ids) != self.width:
            raise UserError(
                f"an image of {split} has {len(ids)} pixels; {self.layout.name} has {self.width}"
            )
        if len(ids) > self.width:
            self.truncated[split] += 1
            ids = ids[: self.width]
        whole = ids.dtype.kind in "iu"
        if len(ids) and not (whole and 0 <= ids.min() <= ids.max() < self.layout.vocab):
            raise UserError(
                f"an example of {split} has ids {ids.min()} to {ids.max()}; "
                f"those of {self.layout.name} are whole numbers from 0 to {self.layout.vocab - 1}"
            )
        self._file(f"{store}.ids", (self.width,), self._dtype).append(ids)
        self._file(f"{store}.lengths", (), np.uint32).append(len(ids))

    def _file(self, name: str, row: tuple[int, ...], dtype: Any) -> ArrayFile:
        if name not in self._files:
            self._files[name] = ArrayFile(self.folder / f"{name}.npy", row, np.dtype(dtype))
        return self._files[name]


# ---------------------------------------------------------------------- statistics


def statistics(splits: dict[str, Split]) -> dict[str, Any]:
    """Statistics of the arrays: per split, and duplicates within and across splits."""
    facts, seen = {}, {}
    for name, split in splits.items():
        facts[name], seen[name] = _describe(split)
    repeats = {name: len(splits[name]) - len(digests) for name, digests in seen.items()}
    for a, b in (("train", "val"), ("train", "test"), ("val", "test")):
        repeats[f"{a}/{b}"] = len(seen[a] & seen[b])
    return {"splits": facts, "duplicates": repeats}


def _describe(split: Split) -> tuple[dict[str, Any], set[bytes]]:
    """The facts of one split, and a digest of each different example."""
    digests: set[bytes] = set()
    lengths, lowest, highest, constant = [], split.layout.vocab, -1, 0
    for ids, length in split.blocks():
        lengths.append(length.ravel())
        highest = max(highest, int(ids.max()))
        real = np.arange(split.width) < length[..., None]
        lowest = min(lowest, int(np.where(real, ids, highest).min()))
        constant += int((ids == ids[..., :1]).all(-1).sum())
        digests.update(hashlib.blake2b(row, digest_size=16).digest() for row in ids)
    quantiles = np.quantile(np.concatenate(lengths), list(QUANTILES.values()), method="lower")
    labels = np.asarray(split.labels)
    scored = labels[labels != IGNORED]
    facts = {
        "examples": len(split),
        "labels": np.bincount(scored, minlength=split.layout.classes).tolist(),
        "lengths": dict(zip(QUANTILES, quantiles.astype(int).tolist(), strict=True)),
        "ids": [lowest, highest],
    }
    return facts | ({"constant": constant} if split.layout.grid else {}), digests


# ---------------------------------------------------------------------- the manifest


def fingerprint(facts: dict[str, Any]) -> str:
    return digest_of(facts)[:16]


def digest_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def manifest_text(facts: dict[str, Any], made: dict[str, Any]) -> str:
    """The file's exact content; `checksum` covers what the fingerprint does not."""
    manifest = {"format": FORMAT, "fingerprint": fingerprint(facts), "facts": facts, "made": made}
    return json.dumps(manifest | {"checksum": digest_of(manifest)}, indent=1) + "\n"


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
        manifest = json.loads(text)
        version = manifest["format"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path} is damaged or unreadable ({error}): remove {folder} and prepare again"
        ) from error
    if version != FORMAT:
        raise UserError(
            f"{folder} was prepared in format {version}, this version reads format {FORMAT}: "
            f"{remedy(manifest)}"
        )
    if text != manifest_text(manifest.get("facts"), manifest.get("made")).encode():
        raise UserError(
            f"{path} is damaged: its checksum is not that of its content; "
            f"remove {folder} and prepare again"
        )
    return manifest


def remedy(manifest: dict[str, Any]) -> str:
    """The command that prepares damaged data again."""
    made = manifest.get("made")
    command = made.get("command") if isinstance(made, dict) else None
    return f"prepare it again with `{command or 'lra data prepare <task>'} --force`"
