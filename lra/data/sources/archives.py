"""Tar archives, read once from front to back, and checksums of the files that users bring."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import posixpath
import tarfile
import zlib
from collections.abc import Generator, Iterator
from enum import Enum
from pathlib import Path
from typing import IO

from lra.base.config import UserError
from lra.data.store import read_errors

CHUNK = 2**20
GZIP = b"\x1f\x8b"


class Checksum(Enum):
    official = "official"  # anything but the published files is refused
    any = "any"  # other files in the same format; every record says so


def user_path(
    path: str | None, source: str, what: str, *, endings: tuple[str, ...] = ("",)
) -> Path:
    """Check the file or folder of the option `path`; with `endings`, a prefix of files will do."""
    place = Path(path or "").expanduser()
    if path is not None and any(Path(f"{place}{ending}").exists() for ending in endings):
        return place
    missing = "" if path is None else f"{place} does not exist: "
    raise UserError(f"{missing}source={source} needs path=, {what}")


class Member:
    """One entry of an archive; a plain file's content can be read until the next is asked for."""

    def __init__(self, path: Path, header: tarfile.TarInfo, content: IO[bytes] | None):
        self.name = posixpath.normpath(header.name)
        self.header = header
        self.plain = content is not None
        self._path, self._content = path, content

    def chunks(self) -> Iterator[bytes]:
        with _archive_errors(self._path):
            while self._content is not None and (chunk := self._content.read(CHUNK)):
                yield chunk

    def read(self) -> bytes:
        return b"".join(self.chunks())


def members(path: Path) -> Generator[Member, None, None]:
    """Read every entry, in order.

    An archive is read to its last byte: tarfile alone takes a damaged header for the end, and does
    not notice that half of a download is missing.
    """
    with read_errors(path), _archive_errors(path), tarfile.open(path) as tar:
        while (header := tar.next()) is not None:
            yield Member(path, header, tar.extractfile(header) if header.isreg() else None)
            tar.members.clear()  # type: ignore[attr-defined]  # millions fill the memory
        _end(tar)


def check_official(path: Path, archive: str, md5: str) -> None:
    """Refuse what is not the published archive; an unpacked one has no checksum."""
    if path.is_dir():
        raise UserError(
            f"{path} cannot be checked: give path= the archive {archive}, or use checksum=any, "
            "which every record will say"
        )
    with read_errors(path), path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if digest != md5:
        raise UserError(
            f"{path} is not the published file: md5 {md5} expected, {digest} found; download it "
            "again, or use checksum=any for data of your own, which every record will say"
        )


@contextlib.contextmanager
def _archive_errors(path: Path) -> Iterator[None]:
    """Turn what readers of damaged archives raise into one sentence that names the file."""
    try:
        yield
    except EOFError as error:
        raise UserError(f"{path} is not complete, it ends too early: download it again") from error
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"{path} is not a tar archive, or a damaged one ({error}): download it again"
        ) from error


def _end(tar: tarfile.TarFile) -> None:
    """Check that the header which stopped the reading was the end mark: zeros, nothing behind."""
    stream: IO[bytes] = tar.fileobj  # type: ignore[assignment]
    zeros = 0
    while rest := stream.read(CHUNK):
        if rest.strip(b"\0"):
            raise tarfile.ReadError("a header within it cannot be read")
        zeros += len(rest)
    if zeros < tarfile.BLOCKSIZE:
        raise EOFError
