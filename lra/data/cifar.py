"""CIFAR-10 as its author publishes it (Krizhevsky 2009), in the binary and in the python version.

Both hold 10,000 images a file, each 3 x 1024 bytes: red, green, blue, row by row. Nothing is
executed on the way: a python batch is a pickle, and is read by an unpickler that knows lists,
dictionaries, strings and the one array it holds.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lra.config import UserError
from lra.data import archives
from lra.data.archives import Checksum
from lra.data.store import read_errors

PIXELS = 1024
RECORD = 1 + 3 * PIXELS  # of the binary version: the label, then the planes
CLASSES = 10
NOTE = "PROVENANCE.txt"  # of a copy that is not the original: what it is, in its first line


class Version(NamedTuple):
    """One of the two published forms."""

    archive: str
    md5: str
    size: int
    folder: str
    train: dict[str, str | None]  # file -> its md5, where one is published
    test: dict[str, str | None]


BINARY = Version(
    archive="cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    size=170_052_171,
    folder="cifar-10-batches-bin",
    train={f"data_batch_{i}.bin": None for i in range(1, 6)},
    test={"test_batch.bin": None},
)
PYTHON = Version(
    archive="cifar-10-python.tar.gz",
    md5="c58f30108f718f92721af3b95e74349a",
    size=170_498_071,
    folder="cifar-10-batches-py",
    train={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    },
    test={"test_batch": "40351d587109b95175f43aff81a1287e"},
)


class Place(NamedTuple):
    """Where one of them lies."""

    path: Path
    version: Version

    @property
    def packed(self) -> bool:
        return self.path.is_file()

    def files(self) -> list[Path]:
        """What is read of it."""
        if self.packed:
            return [self.path]
        return [self.path / name for name in (*self.version.train, *self.version.test)]


class Images(NamedTuple):
    planes: np.ndarray  # (N, 3, 1024) uint8
    labels: np.ndarray  # (N,) uint8


def find(path: Path) -> Place:
    """The archive or the unpacked folder that `path` is or holds."""
    places = []
    for version in (BINARY, PYTHON):
        places += [(path / version.archive, version), (path / version.folder, version)]
        if path.name in (version.archive, version.folder):
            places.insert(0, (path, version))
    ...
