"""CIFAR-10 as its author publishes it (Krizhevsky 2009), in the binary and in the python version.

Both hold 10,000 images a file, each 3 x 1024 bytes: red, green, blue, row by row. Nothing is
executed on the way: a python batch is a pickle, and is read by an unpickler that knows lists,
dictionaries and strings, and of the one array that it holds takes shape and bytes.
"""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lra.base.config import UserError, first_line
from lra.data.sources import archives
from lra.data.sources.archives import Checksum
from lra.data.store import read_errors

PIXELS = 1024
RECORD = 1 + 3 * PIXELS  # of the binary version: the label, then the planes
CLASSES = 10
NOTE = "PROVENANCE.txt"  # of a copy that is not the original: what it is, in its first line


class CifarVersion(NamedTuple):
    archive: str
    md5: str
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]

    @property
    def files(self) -> tuple[str, ...]:
        return self.train + self.test


BINARY = CifarVersion(
    archive="cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    test=("test_batch.bin",),
)
PYTHON = CifarVersion(
    archive="cifar-10-python.tar.gz",
    md5="c58f30108f718f92721af3b95e74349a",
    folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test=("test_batch",),
)
VERSIONS = (BINARY, PYTHON)


class CifarFiles(NamedTuple):
    path: Path
    version: CifarVersion

    @property
    def packed(self) -> bool:
        return self.path.is_file()

    def inputs(self) -> list[Path]:
        if self.packed:
            return [self.path]
        _complete(self, [n for n in self.version.files if not (self.path / n).is_file()])
        return [self.path / name for name in self.version.files]


class CifarBatch(NamedTuple):
    planes: np.ndarray  # (N, 3, 1024) uint8: red, green, blue
    labels: np.ndarray  # (N,) uint8


def find_files(path: Path) -> CifarFiles:
    """Find the archive or the unpacked folder that `path` is or holds; archives go first."""
    for version in VERSIONS:
        for archive in (path, path / version.archive):
            if archive.name == version.archive and archive.is_file():
                return CifarFiles(archive, version)
    for version in VERSIONS:
        for folder in (path, path / version.folder):
            if any((folder / name).is_file() for name in version.files):
                return CifarFiles(folder, version)
    names = " nor ".join(f"{v.archive} nor {v.folder}" for v in VERSIONS)
    raise UserError(f"{path} is and holds neither {names}")


def read_note(place: CifarFiles) -> str | None:
    """Read the first line of the NOTE of a copy that is not the original. In an archive, the NOTE
    is the first file."""
    if place.packed:
        with contextlib.closing(archives.members(place.path)) as members:  # open while it is read
            first = next((m for m in members if m.plain), None)
            noted = first is not None and first.name.rpartition("/")[2] == NOTE
            text = first.read() if first is not None and noted else b""
    else:
        file = place.path / NOTE
        with read_errors(file):
            text = file.read_bytes() if file.exists() else b""
    return text.decode("utf-8", "replace").partition("\n")[0].strip()[:200] or None


def read_batches(place: CifarFiles, checksum: Checksum) -> Iterator[tuple[str, CifarBatch]]:
    """Read every batch by the name of its file, in stored order."""
    if checksum is Checksum.official:
        archives.check_official(place.path, place.version.archive, place.version.md5)
    missing = dict.fromkeys(place.version.files)
    for where, name, content in _packed(place) if place.packed else _unpacked(place):
        if name not in missing:
            raise UserError(f"{place.path} holds {name} twice")
        del missing[name]
        yield name, _binary(where, content) if name in BINARY.files else _python(where, content)
    _complete(place, missing)


def _complete(place: CifarFiles, missing: Collection[str]) -> None:
    if missing:
        raise UserError(f"{place.path} is not complete: {' and '.join(missing)} not found")


def _packed(place: CifarFiles) -> Iterator[tuple[str, str, bytes]]:
    for at, member in enumerate(m for m in archives.members(place.path) if m.plain):
        folder, _, name = member.name.rpartition("/")
        if name == NOTE and at > 0:
            raise UserError(f"{place.path} holds {member.name}, which has to be its first file")
        if folder == place.version.folder and name in place.version.files:
            yield f"{place.path}, {name}", name, member.read()


def _unpacked(place: CifarFiles) -> Iterator[tuple[str, str, bytes]]:
    for file in place.inputs():
        with read_errors(file):
            yield str(file), file.name, file.read_bytes()


# ---------------------------------------------------------------------- one batch


def _binary(where: str, content: bytes) -> CifarBatch:
    if not content or len(content) % RECORD:
        raise UserError(
            f"{where} is damaged: {len(content):,} bytes are no whole number of images of "
            f"{RECORD:,} bytes"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    return _batch(where, records[:, 1:], records[:, 0])


def _python(where: str, content: bytes) -> CifarBatch:
    try:
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        _, shape, _, by_columns, pixels = batch[b"data"].state  # what an array was pickled as
        labels = np.asarray(batch[b"labels"])
        if by_columns or not isinstance(pixels, bytes) or len(shape) != 2:
            raise ValueError("its pixels are not rows of bytes")
        data = np.frombuffer(pixels, np.uint8).reshape(shape)
        if labels.dtype.kind != "i" or labels.shape != data.shape[:1]:
            raise ValueError(f"{data.shape} pixels and {labels.shape} labels")
    except Exception as error:  # an unpickler of damaged bytes raises whatever it meets
        raise UserError(f"{where} is not a batch of CIFAR-10: {first_line(error)}") from error
    return _batch(where, data, labels)


def _batch(where: str, pixels: np.ndarray, labels: np.ndarray) -> CifarBatch:
    if pixels.shape[1] != 3 * PIXELS:
        raise UserError(f"{where}: an image has {pixels.shape[1]} bytes, not {3 * PIXELS}")
    wrong = np.flatnonzero((labels < 0) | (labels >= CLASSES))
    if len(wrong):
        raise UserError(
            f"{where}, image {wrong[0]}: label {labels[wrong[0]]}, "
            f"the labels are 0 to {CLASSES - 1}"
        )
    return CifarBatch(pixels.reshape(-1, 3, PIXELS), labels.astype(np.uint8))


class _Pickled:
    """Stands for the array and its type: NumPy would believe a damaged state, and crash."""

    state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" == "numpy.core.multiarray._reconstruct":
            return lambda *_: _Pickled()
        if module == "numpy" and name in ("ndarray", "dtype"):
            return lambda *_: _Pickled()
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")
