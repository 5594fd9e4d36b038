"""The folders in which LRA keeps Pathfinder images, read and written.

    pathfinder<side>/<difficulty>/imgs/<batch>/sample_<i>.png
                                 /metadata/<batch>.npy

The metadata are text in spite of their name, a line per image: folder, file, index, label (1 for
connected) and seven settings of the generator. The official reader uses the first two and the
label; what follows the last newline it drops.
"""

from __future__ import annotations

import io
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from PIL import Image

from lra.config import UserError
from lra.data.order import order
from lra.data.pathfinder_generator import Settings
from lra.data.store import disk_errors

FOLDERS = {
    "easy": "curv_baseline",
    "intermediate": "curv_contour_length_9",
    "hard": "curv_contour_length_14",
}
# Where pathfinder<side> lies below a folder the user gives. The archive's top folder is doubled and
# holds a second pathfinder128 outside the inner one, which public code reads: so do we.
PLACES = ("lra_release/lra_release", "lra_release", ".")
BATCH = 1000  # images to a folder of those we write
SIGNATURE = b"\x89PNG\r\n\x1a\n"
S4_SEED = 42


class Row(NamedTuple):
    """What the official reader takes from a metadata line."""

    folder: str  # imgs/<batch>
    file: str  # sample_<i>.png
    label: int
    number: int  # of the line in its file, from 1

    @property
    def key(self) -> str:
        return f"{self.folder}_{self.file}_{self.number}"


# ---------------------------------------------------------------------- reading


def find(path: Path, side: int, difficulty: str) -> Path:
    """The folder of one difficulty, from itself or from any folder of the release above it."""
    if (path / "metadata").is_dir():
        return path
    tree = Path(f"pathfinder{side}") / FOLDERS[difficulty]
    places = [path / place / tree for place in PLACES] + [path / FOLDERS[difficulty]]
    found = [place for place in places if (place / "metadata").is_dir()]
    if not found:
        raise UserError(f"{path} holds no folder {tree} with metadata and imgs in it")
    for other in found[1:]:
        print(f"{found[0]} is read, {other} is not: the release holds two copies", file=sys.stderr)
    return found[0]


def metadata(root: Path) -> list[Path]:
    """The metadata files, in the order of their numbers."""
    files = sorted(
        (root / "metadata").glob("*.npy"),
        key=lambda file: (not file.stem.isdecimal(), int(file.stem) if file.stem.isdecimal() else 0, file.stem),
    )
    if not files:
        raise UserError(f"{root / 'metadata'} holds no metadata: files named 0.npy, 1.npy, ...")
    return files


def rows(root: Path) -> list[Row]:
    """Every line of the metadata, in the order of files and lines."""
    return [row for file in metadata(root) for row in _rows(file)]


def read(path: Path, side: int) -> np.ndarray | None:
    """(side * side,) uint8; None for an empty file, of which the release has one."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from error
    if not data:
        return None
    try:
        check_png(data)
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            mode, pixels = image.mode, np.asarray(image)
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{path} is no readable PNG: {error}") from error
    if mode != "L" or pixels.shape != (side, side):
        shape = " x ".join(map(str, pixels.shape))
        raise UserError(f"{path}: {side} x {side} grey pixels of 8 bits expected, {shape} {mode} found")
    return pixels.reshape(-1)


def check_png(data: bytes) -> None:
    """Every chunk's checksum: decoders let damage in some places pass. ValueError says where."""
    if not data.startswith(SIGNATURE):
        raise ValueError("it does not begin like one")
    at, kind = len(SIGNATURE), b""
    while kind != b"IEND":
        end = at + 12 + int.from_bytes(data[at : at + 4])
        kind = data[at + 4 : at + 8]
        if end > len(data):
            raise ValueError(f"it ends within a chunk, after {len(data):,} bytes")
        if zlib.crc32(data[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end]):
            raise ValueError(f"the checksum of the chunk at byte {at} is wrong")
        at = end
    if at != len(data):
        raise ValueError("it goes on after its end")


def _rows(file: Path) -> Iterator[Row]:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {os.strerror(error.errno or 0)}") from error
    if data.startswith(b"\x93NUMPY"):
        raise UserError(f"{file} is a NumPy array; the release's metadata are text of that name")
    try:
        lines = data.decode().split("\n")[:-1]
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not text ({error.reason} at byte {error.start})") from error
    for number, line in enumerate(lines, 1):
        fields, where = line.split(" "), f"{file}, line {number}"
        if len(fields) < 4:
            raise UserError(f"{where}: 4 fields expected at least, {len(fields)} found")
        if fields[3] not in ("0", "1"):
            raise UserError(f"{where}: field 4 is the label, 0 or 1, found {fields[3]!r}")
        path = PurePosixPath(fields[0], fields[1])
        if path.is_absolute() or ".." in path.parts:
            raise UserError(f"{where}: {path} leaves the folder of the images")
        yield Row(fields[0], fields[1], int(fields[3]), number)


# ---------------------------------------------------------------------- orders


def official_order(difficulty: str, keys: Sequence[str]) -> np.ndarray:
    """Positions in the order of TensorFlow Datasets; the difficulty is its split."""
    return order(difficulty, keys)


def s4_order(n: int) -> np.ndarray:
    """torch.randperm(n) under seed 42, by which the S4 lineage splits 80/10/10.

    PyTorch shuffles from the front with 32-bit draws of the Mersenne Twister, which NumPy keeps.
    """
    draws = np.random.RandomState(S4_SEED).randint(0, 2**32, max(n - 1, 0), np.uint32)  # noqa: NPY002
    out = np.arange(n)
    for i, draw in enumerate(draws.tolist()):
        j = i + draw % (n - i)
        out[i], out[j] = out[j], out[i]
    return out


# ---------------------------------------------------------------------- writing


def place(number: int) -> tuple[int, int]:
    """(batch, index) of an image of a series we write."""
    return divmod(number, BATCH)


def key(number: int) -> str:
    """The key it has in the official order."""
    batch, index = place(number)
    return f"imgs/{batch}_sample_{index}.png_{index + 1}"


class Drawn(NamedTuple):
    image: np.ndarray  # (side, side) uint8
    label: int
    margin: int


def write(root: Path, drawn: Iterable[Drawn], settings: Settings) -> Iterator[Path]:
    """Images 0, 1, ... of a series into a difficulty's folder, and the paths of their files.

    A batch gets its metadata when all of its images are written.
    """
    with disk_errors(root):
        (root / "metadata").mkdir(parents=True, exist_ok=True)
