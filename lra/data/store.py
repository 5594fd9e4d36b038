"""Files and folders of the prepared form: written whole or not at all, one process at a time."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from lra.base.disk import disk_errors, take_lock
from lra.base.errors import UserError


@contextlib.contextmanager
def read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from error


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Give a temporary folder to fill; it is renamed to `folder`, whole and on disk, when the block
    ends without an error."""
    partial = folder.with_name(f".{folder.name}.partial")
    replaced = folder.with_name(f".{folder.name}.replaced")
    with disk_errors(folder.parent):
        for leftover in (partial, replaced):  # of a process that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            yield partial
            for path in [*partial.rglob("*"), partial]:
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
    """Let one process at a time work on `folder`; the others print `waiting` and wait."""
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


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
