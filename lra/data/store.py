"""Files of the prepared form: written whole or not at all, read row by row."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lra.base.config import UserError
from lra.base.disk import disk_errors, take_lock

CHUNK = 2**22  # bytes


@contextlib.contextmanager
def read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from error


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder to fill; it is renamed to `folder`, whole and on disk, when the block ends
    without an error."""
    partial = folder.with_name(f".{folder.name}.partial")
    replaced = folder.with_name(f".{folder.name}.replaced")
    with disk_errors(folder.parent):
        for leftover in (partial, replaced):  # of a process that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir(parents=True)
    try:
        yield partial
        with disk_errors(folder.parent):
            for path in [*partial.iterdir(), partial]:
                _sync(path)
            if folder.exists():
                folder.rename(replaced)
            partial.rename(folder)
            _sync(folder.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        if replaced.exists() and not folder.exists():
            replaced.rename(folder)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


@contextlib.contextmanager
def lock(folder: Path, waiting: str) -> Iterator[None]:
    """One process at a time for `folder`; the others print `waiting` and wait."""
    with disk_errors(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        handle = folder.with_name(f".{folder.name}.lock").open("a")
    with handle:
        if not take_lock(handle, folder):
            print(waiting, flush=True)
            take_lock(handle, folder, wait=True)
        yield


def sha256(path: Path) -> str:
    with read_errors(path), path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


class ArrayFile:
    """A .npy file that grows row by row; the number of rows is written into its header at the
    end."""

    def __init__(self, path: Path, row: tuple[int, ...], dtype: np.dtype):
        self.path, self.row, self.dtype, self.rows = path, row, np.dtype(dtype), 0
        self._room = max(1, CHUNK // max(1, self.dtype.itemsize * int(np.prod(row))))
        self._buffer = np.zeros((self._room, *row), self.dtype)
        self._held = 0
        with disk_errors(path.parent):
            self._file = path.open("wb")

    def append(self, values: np.ndarray | int) -> None:
        """One row; a row that is too short is filled up with zeros."""
        if isinstance(values, np.ndarray) and values.ndim == 1 and len(self.row) == 1:
            self._buffer[self._held, : len(values)] = values
        else:
            self._buffer[self._held] = values
        self._held += 1
        if self._held == self._room:
            self._flush()

    def close(self) -> dict[str, Any]:
        """The facts of the finished file."""
        with disk_errors(self.path.parent):
            self._flush()
            self._file.seek(0)
            self._write_header()
            self._file.close()
        return {
            "dtype": self.dtype.name,
            "shape": [self.rows, *self.row],
            "bytes": self.path.stat().st_size,
            "sha256": sha256(self.path),
        }

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()

    def _flush(self) -> None:
        with disk_errors(self.path.parent):
            if self._file.tell() == 0:
                self._write_header()
            self._file.write(self._buffer[: self._held].data)
        self.rows += self._held
        self._buffer[: self._held] = 0
        self._held = 0

    def _write_header(self) -> None:
        # numpy leaves room for the first axis to grow: the header's length does not depend on it
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.rows, *self.row)}
        np.lib.format.write_array_header_1_0(self._file, header)


class HeldRows:
    """Rows in memory, which read like those of a file."""

    def __init__(self, rows: np.ndarray):
        self.rows, self.dtype = rows, rows.dtype

    def take(self, index: np.ndarray, columns: int) -> np.ndarray:
        return self.rows[index, :columns]


class Rows:
    """Rows of a two-dimensional .npy file, read by position and not through a memory map: mapped
    pages count as the process's memory until the whole file does, and a disk error under a map is
    a dead process."""

    def __init__(self, path: Path):
        self.path = path
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            if version != (1, 0):
                raise ValueError(f"{path} is of .npy version {version}, (1, 0) expected")
            self.shape, _, self.dtype = np.lib.format.read_array_header_1_0(file)
            self._start = file.tell()
            self._handle = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._handle)
        self._stride = self.shape[1] * self.dtype.itemsize

    def __reduce__(self) -> tuple[type[Rows], tuple[Path]]:
        return Rows, (self.path,)

    def take(self, index: np.ndarray, columns: int) -> np.ndarray:
        """(len(index), columns): the first columns of these rows."""
        out = np.empty((len(index), columns), self.dtype)
        wanted = columns * self.dtype.itemsize
        for row, target in zip(index.tolist(), out, strict=True):
            if os.preadv(self._handle, [target], self._start + row * self._stride) != wanted:
                raise UserError(
                    f"{self.path} is damaged: it ends within row {row} of {self.shape[0]}"
                )
        return out


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
