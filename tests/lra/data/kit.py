"""Small archives in the layouts of CIFAR-10, IMDB and the release."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from lra.data import image
from lra.data.arrays import MANIFEST, Prepared
from lra.data.verify import verify

Members = Iterable[tuple[str, bytes]]


def headers(members: Members) -> list[tuple[tarfile.TarInfo, bytes]]:
    found = []
    for name, content in members:
        found.append((tarfile.TarInfo(name), content))
        found[-1][0].size = len(content)
    return found


def tar(path: Path, members: Members, *, packed: bool = True) -> Path:
    return tar_of(path, headers(members), packed=packed)


def tar_of(
    path: Path, entries: Iterable[tuple[tarfile.TarInfo, bytes]], *, packed: bool = True
) -> Path:
    """An archive of any headers, those that no honest program writes too."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for header, content in entries:
            archive.addfile(header, io.BytesIO(content))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(out.getvalue(), 1) if packed else out.getvalue())
    return path


def unpack(folder: Path, members: Members) -> Path:
    for name, content in members:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def texts(made: Prepared, split: str) -> list[tuple[Any, ...]]:
    """The examples of a task of bytes, read from the ids: their texts, one or two, and labels."""
    part = made.split(split)
    every = np.arange(len(part))
    ids, lengths = part.ids(every).reshape(-1, part.width), part.lengths(every).ravel()
    each = [(row[:n] - 1).astype(np.uint8).tobytes() for row, n in zip(ids, lengths, strict=True)]
    sides = (each[::2], each[1::2]) if made.layout.dual else (each,)
    return list(zip(*sides, part.labels.tolist(), strict=True))


def leftovers(data_dir: Path) -> list[str]:
    """Files that are neither a lock nor in a finished preparation."""
    files = (p for p in data_dir.rglob("*") if p.is_file())
    return [str(p) for p in files if p.suffix != ".lock" and not (p.parent / MANIFEST).exists()]


def differences(folder: Path) -> list[str]:
    """What `verify` finds wrong in a prepared folder."""
    return [line.text for line in verify(folder) if line.status == "differs"]


def files(folder: Path) -> list[str]:
    """Everything below a folder, but locks."""
    found = (p for p in folder.rglob("*") if not p.is_dir() and p.suffix != ".lock")
    return sorted(p.relative_to(folder).as_posix() for p in found)


# ---------------------------------------------------------------------- CIFAR-10


def pictures(files: dict[str, int], seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Random planes (N, 3072) and labels of so many pictures per file."""
    rng = np.random.default_rng(seed)
    return {
        name: (rng.integers(0, 256, (n, 3072), np.uint8), rng.integers(0, 10, n, np.uint8))
        for name, n in files.items()
    }


def binary_members(batches: dict[str, tuple[np.ndarray, np.ndarray]]) -> list[tuple[str, bytes]]:
    """Names of files without their ending, in alphabetical disorder."""
    names = "airplane automobile bird cat deer dog frog horse ship truck".split()  # noqa: SIM905
    files = {"batches.meta.txt": "\n".join([*names, ""]).encode(), "readme.html": b"<p>"}
    for name, (planes, labels) in reversed(batches.items()):
        files[f"{name}.bin"] = np.concatenate([labels[:, None], planes], axis=1).tobytes()
    return [(f"{image.FOLDER}/{name}", content) for name, content in files.items()]


# ---------------------------------------------------------------------- IMDB


def reviews(count: int, seed: int = 0) -> dict[str, bytes]:
    """So many in each of the four folders, by key."""
    rng = np.random.default_rng(seed)
    made = {}
    for split in ("train", "test"):
        for label, stars in (("neg", 3), ("pos", 9)):
            for i in range(count):
                text = rng.integers(33, 256, rng.integers(5, 60), np.uint8).tobytes()
                made[f"aclImdb/{split}/{label}/{i}_{stars}.txt"] = text
    return made


def imdb_members(made: dict[str, bytes]) -> list[tuple[str, bytes]]:
    """With what else the published archive holds."""
    others = {
        "aclImdb/README": b"read me",
        "aclImdb/train/unsup/0_0.txt": b"unlabelled",
        "aclImdb/train/labeledBow.feat": b"9 0:9",
        "aclImdb/train/urls_neg.txt": b"http://",
    }
    return [*others.items(), *made.items()]
