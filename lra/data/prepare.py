"""From options to prepared arrays: opened where they are on disk, or made once; the arrays are
written and counted here."""

from __future__ import annotations

import contextlib
import hashlib
import platform
import shlex
import time
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Self

import numpy as np

from lra.base.errors import UserError
from lra.data import registry
from lra.data.arrays import (
    IGNORED,
    MANIFEST,
    QUANTILES,
    SPLITS,
    Example,
    Layout,
    Prepared,
    Split,
    digest_of,
    manifest_text,
    read_manifest,
)
from lra.data.parallel import cores, track
from lra.data.registry import check_options, overrides
from lra.data.store import lock, new_folder, read_errors, sha256
from lra.data.task import Job, RawSplit, Task, TaskOptions

CHUNK = 2**22  # bytes of an array that wait in memory


def identity(task: Task, options: TaskOptions, max_length: int) -> str:
    """Name the preparation: the source, and a hash of everything that decides the arrays."""
    facts = known_facts(task, options, max_length)
    facts.pop("provenance")  # words, not data
    return f"{options.source}-{digest_of(facts)[:10]}"


def load_prepared(folder: Path) -> Prepared:
    manifest = read_manifest(folder)
    return Prepared(folder, manifest, registry.of_facts(manifest["facts"]))


def find_prepared(
    options: TaskOptions, *, max_length: int, data_dir: str | Path
) -> Prepared | None:
    """Open the prepared data; None where they are not prepared."""
    task = registry.of(options)
    check_options(task, options)
    folder = Path(data_dir) / task.name / identity(task, options, max_length)
    with read_errors(folder):
        there = (folder / MANIFEST).exists()
    return load_prepared(folder) if there else None


def with_fingerprint(data_dir: Path, task: str, fingerprint: str) -> Prepared | None:
    """Open the prepared data of a record, if they are on this machine."""
    for manifest in sorted((data_dir / task).glob(f"*/{MANIFEST}")):
        if read_manifest(manifest.parent)["fingerprint"] == fingerprint:
            return load_prepared(manifest.parent)
    return None


def find_or_prepare(
    options: TaskOptions, *, max_length: int, data_dir: str | Path, workers: int | None = None
) -> Prepared:
    """Open the prepared data, prepared now if they are missing; see `refuse_download`."""
    where: dict[str, Any] = {"max_length": max_length, "data_dir": data_dir}
    if prepared := find_prepared(options, **where):
        return prepared
    refuse_download(options, **where)
    task = registry.of(options)
    print(f"{task.name} is not prepared yet ({task.provenance(options)}); preparing it now")
    return prepare(options, **where, workers=workers)


def refuse_download(options: TaskOptions, *, max_length: int, data_dir: str | Path) -> None:
    """UserError, with the command that prepares them, where data are missing that would have to be
    downloaded: no run downloads anything."""
    where: dict[str, Any] = {"max_length": max_length, "data_dir": data_dir}
    task = registry.of(options)
    if task.needs_download(options, Path(data_dir)) and find_prepared(options, **where) is None:
        raise UserError(
            f"{task.name} is not prepared in {data_dir} and has to be downloaded: "
            f"run `{prepare_command(options, **where)}`"
        )


def prepare(
    options: TaskOptions,
    *,
    max_length: int,
    data_dir: str | Path,
    workers: int | None = None,
    force: bool = False,
) -> Prepared:
    """Prepare a task, or return what is prepared already; `force` prepares it again."""
    task = registry.of(options)
    where: dict[str, Any] = {"max_length": max_length, "data_dir": data_dir}
    if not force and (prepared := find_prepared(options, **where)):
        _check_inputs(prepared, task, options)
        return prepared
    check_options(task, options)
    folder = Path(data_dir) / task.name / identity(task, options, max_length)
    waiting = f"another process is preparing {task.name} in {folder}; waiting for it"
    with lock(folder, waiting):
        if not force and (prepared := find_prepared(options, **where)):  # made during the wait
            return prepared
        with new_folder(folder) as partial:
            _make(task, options, Job(workers or cores(), Path(data_dir)), partial, max_length)
        return load_prepared(folder)


def prepare_command(options: TaskOptions, *, max_length: int, data_dir: str | Path) -> str:
    task = registry.of(options)
    words = ["lra", "data", "prepare", task.name, *overrides(task, options)]
    if str(data_dir) != "data":
        words += ["--data-dir", str(data_dir)]
    if task.width(options, max_length) != task.width(options, task.max_length):
        words += ["--max-length", str(max_length)]
    return shlex.join(words)


def known_facts(task: Task, options: TaskOptions, max_length: int) -> dict[str, Any]:
    return {
        "task": task.name,
        "source": options.source,
        "provenance": task.provenance(options),
        "options": task.matters(options),
        "width": task.width(options, max_length),
        "versions": task.versions(options),
    }


def _make(task: Task, options: TaskOptions, job: Job, partial: Path, max_length: int) -> None:
    start = time.monotonic()
    facts = known_facts(task, options, max_length)
    inputs = [_input(path) for path in _files(task, options)]
    arrays, truncated = _write(task, task.splits(options, job), facts["width"], partial)
    inputs += [_input(path) for path in job.inputs]
    counted = statistics({s: Split.open(s, task, facts["width"], partial) for s in SPLITS})
    for split, facts_of_split in counted["splits"].items():
        facts_of_split["truncated"] = truncated[split]
    facts |= {**counted, "notes": dict(sorted(job.notes.items())), "arrays": arrays}
    made = {
        "command": prepare_command(options, max_length=max_length, data_dir=job.data_dir),
        "inputs": inputs,
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seconds": round(time.monotonic() - start, 1),
        "luna-lra": next((d.version for d in distributions(name="luna-lra")), None),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    (partial / MANIFEST).write_text(manifest_text(facts, made), encoding="utf-8")


def _write(
    task: Task, splits: list[RawSplit], width: int, partial: Path
) -> tuple[dict[str, Any], dict[str, int]]:
    """Write the arrays; give their facts, and how many examples of each split had to be cut."""
    sizes = [split.size for split in splits]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    examples = ((split.name, example) for split in splits for example in split.examples)
    with Writer(partial, task, width) as writer:
        for name, example in track(examples, f"preparing {task.name}", total):
            writer.add(name, example)
        return writer.close(), writer.truncated


def _files(task: Task, options: TaskOptions) -> list[Path]:
    """List the files that a task reads; without `path` a prepared task does not need them."""
    is_elsewhere = options.source != "tiny" and getattr(options, "path", "") is None
    return [] if is_elsewhere else task.inputs(options)


def _input(path: Path) -> dict[str, Any]:
    return {"path": str(path.resolve()), "bytes": path.stat().st_size, "sha256": sha256(path)}


def _check_inputs(prepared: Prepared, task: Task, options: TaskOptions) -> None:
    """Refuse input files that differ from those the arrays were made from."""
    hashes = {item["sha256"] for item in prepared.manifest["made"]["inputs"]}
    for path in _files(task, options):
        if sha256(path) not in hashes:
            raise UserError(
                f"{prepared.folder} was prepared from other files: {path} is not one of them; "
                "use --force to prepare from these, or another --data-dir to keep both"
            )


# ---------------------------------------------------------------------- arrays


class Writer:
    def __init__(self, folder: Path, layout: Layout, width: int):
        most = 2**15 if layout.per_token else 2**8  # larger labels would wrap around
        if layout.classes > most or layout.vocab > 2**16:
            raise UserError(
                f"{layout.name} has more than {most:,} classes or more than 65,536 different ids"
            )
        self.folder, self.layout, self.width = folder, layout, width
        self.truncated = dict.fromkeys(SPLITS, 0)
        self._dtype = np.dtype(np.uint8 if layout.vocab <= 256 else np.uint16)
        self._files: dict[str, ArrayFile] = {}
        self._texts: dict[bytes, int] = {}  # of a dual task: digest -> row

    def add(self, split: str, example: Example) -> None:
        ids, label = example
        labels = np.atleast_1d(label)
        scored = labels[labels != IGNORED] if self.layout.per_token else labels
        self._check_range(split, "label", scored, self.layout.classes)
        if self.layout.dual:
            rows = [self._text(split, np.asarray(side)) for side in ids]
            self._file(f"{split}.pairs", (2,), np.uint32).append(np.asarray(rows))
        else:
            self._sequence(split, split, np.asarray(ids))
        if self.layout.per_token:
            row = np.full(self.width // self.layout.stack, IGNORED, np.int16)
            row[: len(labels)] = labels[: len(row)]
            if (row == IGNORED).all():  # the loss of a batch of such examples is nan
                raise UserError(f"an example of {split} has no scored label: leave it out")
            self._file(f"{split}.labels", row.shape, np.int16).append(row)
        else:
            self._file(f"{split}.labels", (), np.uint8).append(labels[0])

    def close(self) -> dict[str, dict[str, Any]]:
        facts = {name: file.close() for name, file in sorted(self._files.items())}
        if empty := [s for s in SPLITS if f"{s}.labels" not in facts]:
            raise UserError(f"{self.layout.name} has no examples for {' and '.join(empty)}")
        return facts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):  # of a full disk, which has been reported
                file.file.close()

    def _text(self, split: str, ids: np.ndarray) -> int:
        start = np.ascontiguousarray(ids[: self.width], self._dtype)
        digest = hashlib.blake2b(start.tobytes(), digest_size=16).digest()
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
        self._check_range(split, "id", ids, self.layout.vocab)
        self._file(f"{store}.ids", (self.width,), self._dtype).append(ids)
        self._file(f"{store}.lengths", (), np.uint32).append(len(ids))

    def _check_range(self, split: str, what: str, values: np.ndarray, end: int) -> None:
        wrong = (values < 0) | (values >= end)
        if values.dtype.kind not in "iu":
            wrong |= values % 1 != 0
        if wrong.any():
            raise UserError(
                f"an example of {split} has {what} {values[wrong][0]}; {what}s of "
                f"{self.layout.name} are whole numbers from 0 to {end - 1}"
            )

    def _file(self, name: str, row: tuple[int, ...], dtype: Any) -> ArrayFile:
        if name not in self._files:
            self._files[name] = ArrayFile(self.folder / f"{name}.npy", row, dtype)
        return self._files[name]


# ---------------------------------------------------------------------- statistics


def statistics(splits: dict[str, Split]) -> dict[str, Any]:
    """Count the arrays: per split, and duplicates within and across splits."""
    facts, seen = {}, {}
    for name, split in splits.items():
        facts[name], seen[name] = _describe(split)
    repeats = {name: len(splits[name]) - len(digests) for name, digests in seen.items()}
    for a, b in (("train", "val"), ("train", "test"), ("val", "test")):
        repeats[f"{a}/{b}"] = len(seen[a] & seen[b])
    return {"splits": facts, "duplicates": repeats}


def _describe(split: Split) -> tuple[dict[str, Any], set[bytes]]:
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


class ArrayFile:
    """A .npy file that grows row by row; its header gets the number of rows at the end."""

    def __init__(self, path: Path, row: tuple[int, ...], dtype: Any):
        self.path, self.row, self.dtype, self.rows = path, row, np.dtype(dtype), 0
        self.file = path.open("wb", buffering=CHUNK)
        self._write_header()

    def append(self, values: np.ndarray | int) -> None:
        """Add one row; a row that is too short is filled up with zeros."""
        row = np.zeros(int(np.prod(self.row)), self.dtype)
        row[: np.size(values)] = values
        self.rows += 1
        self.file.write(row.data)

    def close(self) -> dict[str, Any]:
        self.file.seek(0)
        self._write_header()
        self.file.close()
        return {
            "dtype": self.dtype.name,
            "shape": [self.rows, *self.row],
            "bytes": self.path.stat().st_size,
            "sha256": sha256(self.path),
        }

    def _write_header(self) -> None:
        # numpy leaves room for the first axis to grow: the header's length does not depend on it
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.rows, *self.row)}
        np.lib.format.write_array_header_1_0(self.file, header)
