"""The IMDB Large Movie Review Dataset v1.0 as its authors publish it (Maas et al. 2011).

    aclImdb/{train,test}/{neg,pos}/<number>_<stars>.txt

Reviews are taken and named as TensorFlow Datasets' builder does it (imdb_reviews 1.0.0): every file
below those four folders, ASCII whitespace at both ends removed, nothing else changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lra.base.config import UserError
from lra.data.parallel import track
from lra.data.sources import archives
from lra.data.sources.archives import Checksum
from lra.data.store import read_errors

ARCHIVE, FOLDER = "aclImdb_v1.tar.gz", "aclImdb"
MD5 = "7c2ac02c03563afcf9b574c7e56c153a"
LABELS = ("neg", "pos")
REVIEW = re.compile(rf"{FOLDER}/(train|test)/({'|'.join(LABELS)})/")


class Review(NamedTuple):
    key: str  # aclImdb/train/neg/0_3.txt
    text: bytes
    label: int


def find_place(path: Path) -> Path:
    """Find the archive or the unpacked folder that `path` is or holds; the archive goes first."""
    if path.is_file() or (path.name == FOLDER and path.is_dir()):
        return path
    for name in (ARCHIVE, FOLDER):
        if (path / name).exists():
            return path / name
    raise UserError(f"{path} holds neither {ARCHIVE} nor the folder {FOLDER}")


def read_reviews(place: Path, checksum: Checksum) -> dict[str, list[Review]]:
    """Read the labelled reviews of `train` and `test`, in no particular order."""
    archive = place.is_file()
    if checksum is Checksum.official:
        archives.check_official(place, ARCHIVE, MD5)
    reviews: dict[str, list[Review]] = {f"{s}/{x}": [] for s in ("train", "test") for x in LABELS}
    files = _packed(place) if archive else _unpacked(place)
    for key, content in track(files, f"reading {place.name}"):
        _, split, label, *_ = key.split("/")
        if not (text := content.strip()):
            raise UserError(f"{place}: the review {key} is empty")
        reviews[f"{split}/{label}"].append(Review(key, text, LABELS.index(label)))
    for folder, part in reviews.items():
        if not part:
            raise UserError(f"{place} holds no reviews in {FOLDER}/{folder}")
        if len({review.key for review in part}) < len(part):
            raise UserError(f"{place} holds reviews of {FOLDER}/{folder} twice")
    return {split: reviews[f"{split}/neg"] + reviews[f"{split}/pos"] for split in ("train", "test")}


def _packed(archive: Path) -> Iterator[tuple[str, bytes]]:
    for member in archives.members(archive):
        if member.plain and REVIEW.match(member.name) and not _hidden(member.name):
            yield member.name, member.read()


def _unpacked(folder: Path) -> Iterator[tuple[str, bytes]]:
    for top in (folder / split / label for split in ("train", "test") for label in LABELS):
        for file in top.rglob("*"):
            key = f"{FOLDER}/{file.relative_to(folder).as_posix()}"
            if file.is_file() and not _hidden(key):
                with read_errors(file):
                    yield key, file.read_bytes()


def _hidden(key: str) -> bool:
    """Recognise what TensorFlow Datasets skips: hidden files and backups of editors."""
    return key.endswith("~") or key.rpartition("/")[2].startswith(".")
