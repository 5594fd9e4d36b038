"""Tar archives, read once from front to back."""

from __future__ import annotations

import contextlib
import gzip
import posixpath
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from lra.base.errors import UserError
from lra.data.store import read_errors

CHUNK = 2**20
MOST = 2**26  # bytes that are read at once, which a header may claim to be any number
DEEPEST, LONGEST = 20, 500  # folders and characters of a name
GZIP = b"\x1f\x8b"


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    """Give the plain files of a tar archive by their names, in order, each to be read before the
    next. Damage met in the block becomes one sentence that names the archive."""
    with read_errors(path):
        try:
            with path.open("rb") as file:
                packed = file.read(len(GZIP)) == GZIP
            with gzip.open(path) if packed else path.open("rb") as file:
                limited: Any = _Limited(file)
                with tarfile.open(fileobj=limited, mode="r:") as tar:
                    yield _files(tar)
        except EOFError as error:
            raise UserError(f"{path} is not complete, it ends early: download it again") from error
        except (tarfile.TarError, gzip.BadGzipFile, zlib.error, RecursionError) as error:
            raise UserError(
                f"{path} is not a tar archive, or a damaged one ({error}): download it again"
            ) from error


class _Limited:
    def __init__(self, file: Any):
        self.file, self.seek, self.tell = file, file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        if size > MOST:
            raise tarfile.ReadError(f"something in it claims {size:,} bytes")
        return self.file.read(size)


def _files(tar: tarfile.TarFile) -> Iterator[tuple[str, IO[bytes]]]:
    while (header := tar.next()) is not None:
        if len(header.name) > LONGEST or header.name.count("/") > DEEPEST:
            raise tarfile.ReadError(f"it holds a name that is too long, {header.name:.40}...")
        if header.isreg() and (content := tar.extractfile(header)):
            yield posixpath.normpath(header.name), content
        tar.members.clear()  # type: ignore[attr-defined]  # millions fill the memory
    # tarfile takes a damaged header for the end, and does not notice that half of a download is
    # missing: behind the end mark are zeros, and at least one block of them.
    zeros, stream = 0, tar.fileobj
    while rest := stream.read(CHUNK):
        if rest.strip(b"\0"):
            raise tarfile.ReadError("a header within it cannot be read")
        zeros += len(rest)
    if zeros < tarfile.BLOCKSIZE:
        raise EOFError
