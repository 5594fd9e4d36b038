"""Data sets of TensorFlow Datasets, without TensorFlow.

The library says which archive a data set is (address, size and SHA-256); its splits are cut in the
order in which it stores them, by MD5(split name + key). That it builds the same arrays is tested:
running its builders here would take TensorFlow for little more than opening files.

Archives lie in <data_dir>/tfds/downloads; one that was fetched elsewhere goes there too.
"""

from __future__ import annotations

import hashlib
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from http.client import HTTPException
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from lra.base.disk import disk_errors, require_space
from lra.base.errors import UserError
from lra.data.parallel import track
from lra.data.store import lock, sha256
from lra.data.task import BUNDLED, Job, Source, Task, TaskOptions, read_by

ANSWER = 10.0  # seconds within which a server must answer or send more
CHUNK = 2**20


class Checksum(Enum):
    official = "official"  # anything but the published archive is refused
    any = "any"  # other files in the same format; every record says so


class Registered(NamedTuple):
    url: str
    size: int
    sha256: str


class Dataset(NamedTuple):
    name: str  # with configuration and version
    archive: str

    def registered(self) -> Registered:
        """Ask the library for the archive that it would download."""
        import tensorflow_datasets

        ((url, info),) = tensorflow_datasets.builder(self.name).url_infos.items()
        return Registered(url, int(info.size), info.checksum)


@dataclass
class PublishedOptions(TaskOptions):
    path: str | None = read_by("files", default=None, place=True)
    checksum: Checksum = read_by("files", default=Checksum.official)  # noqa: RUF009


class PublishedTask(Task):
    """Reads one archive: downloaded, brought by the user, or a bundled one in its format."""

    dataset: ClassVar[Dataset]

    def archive(self, options: PublishedOptions, job: Job) -> Path:
        """Give the archive, checked if it has to be the published one."""
        if options.source == "tfds":
            data, place = self.dataset.registered(), self._download(job.data_dir)
            other = (
                f"fetch {data.url} elsewhere and put it into {place.parent}, or use source=files"
            )
            fetch(data.url, place, instead=other, size=data.size, digest=data.sha256)
            job.inputs.append(place)
            return place
        (archive,) = self.inputs(options)
        official = options.source == "files" and options.checksum is Checksum.official
        if official and (digest := sha256(archive)) != (wanted := self.dataset.registered().sha256):
            raise UserError(
                f"{archive} is not the published file: sha256 {wanted} expected, {digest} "
                "found; download it again, or use checksum=any for data of your own, which every "
                "record will say"
            )
        return archive

    def inputs(self, options: PublishedOptions) -> list[Path]:
        name = self.dataset.archive
        place = self.place(options, f"{name} or the folder that holds it")
        archive = place if place.is_file() else place / name
        if not archive.is_file():
            raise UserError(f"{place} holds no {name}")
        return [archive]

    def needs_download(self, options: PublishedOptions, data_dir: Path) -> bool:
        return options.source == "tfds" and not self._download(data_dir).exists()

    def _download(self, data_dir: Path) -> Path:
        return data_dir / "tfds" / "downloads" / self.dataset.archive


def sources_of(dataset: Dataset, published: str) -> dict[str, Source]:
    return {
        "tfds": Source(f"TensorFlow Datasets, {dataset.name}", {"dataset": dataset.name}),
        "files": Source(published),
        "tiny": BUNDLED,
    }


def order(split: str, keys: Iterable[int | str]) -> np.ndarray:
    """Sort `keys`: element 0 is the position of the example that is stored first."""
    digests = [
        hashlib.md5(f"{split}{key}".encode(), usedforsecurity=False).digest() for key in keys
    ]
    return np.array(sorted(range(len(digests)), key=digests.__getitem__), np.int64)


def percent(n: int, start: float, end: float) -> slice:
    """Give the slice `[start%:end%]` of n examples, whose bounds are rounded to the nearest."""
    return slice(round(start * n / 100), round(end * n / 100))


# ---------------------------------------------------------------------- downloads


def fetch(url: str, target: Path, *, instead: str, size: int, digest: str) -> None:
    """Download `url` to `target`, or take what lies there, if its size and SHA-256 are these.
    `instead` ends the message when it cannot be had: what else to do."""
    partial = target.with_name(f".{target.name}.partial")
    waiting = f"another process is downloading {target}; waiting for it"
    with lock(target, waiting), disk_errors(target.parent):
        if target.exists():
            _check(target, size, digest)
            return
        print(f"downloading {size / 1e6:,.0f} MB to {target.parent}", flush=True)
        require_space(target.parent, size)
        try:
            _receive(url, partial, size)
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise UserError(f"{url} cannot be reached ({reason}); {instead}") from error
        _check(partial, size, digest)
        partial.replace(target)


def _receive(url: str, file: Path, size: int) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "luna-lra"})
    with urllib.request.urlopen(request, timeout=ANSWER) as body, file.open("wb") as out:
        chunks = iter(lambda: body.read(CHUNK), b"")
        for chunk in track(chunks, f"downloading {file.stem[1:]}, MiB", round(size / CHUNK)):
            with disk_errors(file.parent):
                out.write(chunk)


def _check(file: Path, size: int, digest: str) -> None:
    wrong = ""
    if (there := file.stat().st_size) != size:
        wrong = f"{size:,} bytes expected, {there:,} found"
    elif (computed := sha256(file)) != digest:
        wrong = f"sha256 {digest} expected, {computed} found"
    if wrong:
        raise UserError(f"{file} is not the published file: {wrong}; remove it and try again")
