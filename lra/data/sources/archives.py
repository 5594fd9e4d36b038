"""Tar archives, read once from front to back."""

from __future__ import annotations

import contextlib
import gzip
import posixpath
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from lra.base.config import UserError
from lra.data.store import read_errors

CHUNK = 2**20
GZIP = b"\x1f\x8b"


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    """Give the plain files of a tar archive by their names, in order, each to be read before the
    next. Damage met in the block becomes one sentence that names the archive."""
    with read_errors(path):
        try:
            with tarfile.open(path) as tar:
                yield _files(tar)
        except EOFError as error:
            raise UserError(f"{path} is not complete, it ends early: download it again") from error
        except (tarfile.TarError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(
                f"{path} is not a tar archive, or a damaged one ({error}): download it again"
            ) from error


def _files(tar: tarfile.TarFile) -> Iterator[tuple[str, IO[bytes]]]:
    while (header := tar.next()) is not None:
        if header.isreg() and (content := tar.extractfile(header)):
            yield posixpath.normpath(header.name), content
        tar.members.clear()  # type: ignore[attr-defined]  # millions fill the memory
    # tarfile takes a damaged header for the end, and does not notice that half of a download is
    # missing: behind the end mark are zeros, and at least one block of them.
    zeros, stream = 0, tar.fileobj
    while rest := stream.read(CHUNK):  # type: ignore[union-attr]
        if rest.strip(b"\0"):
            raise tarfile.ReadError("a header within it cannot be read")
        zeros += len(rest)
    if zeros < tarfile.BLOCKSIZE:
        raise EOFError
