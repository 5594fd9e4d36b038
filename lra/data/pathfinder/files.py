"""The folders in which LRA keeps Pathfinder images.

    pathfinder<side>/<difficulty>/imgs/<batch>/sample_<i>.png
                                 /metadata/<batch>.npy

The metadata are text in spite of their name, a line per image: folder, file, index, label (1 for
connected) and seven settings of the generator. The official reader uses the first two and the
label, and ignores text after the last newline.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from PIL import Image

from lra.base.errors import UserError
from lra.data.pathfinder.sizes import Difficulty
from lra.data.sources import release
from lra.data.store import read_errors

END = b"\0\0\0\0IEND\xaeB`\x82"  # the last chunk of every PNG
BATCH = 1000  # images to a folder of those we write


class MetadataRow(NamedTuple):
    folder: str  # imgs/<batch>
    file: str  # sample_<i>.png
    label: int
    number: int  # of the line in its file, from 1

    @property
    def key(self) -> str:
        return f"{self.folder}_{self.file}_{self.number}"


def place_in_release(side: int, difficulty: Difficulty) -> str:
    return f"pathfinder{side}/{difficulty.folder}"


def find_images(path: Path, side: int, difficulty: Difficulty) -> Path:
    """Find the folder of one difficulty in itself or in any folder of the release above it."""
    wanted = place_in_release(side, difficulty)
    if (path / "metadata").is_dir():
        if path.resolve().name in {d.folder for d in Difficulty} - {difficulty.folder}:
            raise UserError(
                f"{path} is not {difficulty.name}, whose folder is called {difficulty.folder}"
            )
        return path
    for folder in (*release.folders(path, wanted), path / difficulty.folder):
        if (folder / "metadata").is_dir():
            return folder
    raise UserError(f"{path} holds no folder {wanted} with metadata and imgs")


def metadata_files(root: Path) -> list[Path]:
    """List the metadata files, in the order of their numbers."""
    files = list((root / "metadata").glob("*.npy"))
    if not files or not all(file.stem.isdecimal() for file in files):
        raise UserError(f"{root / 'metadata'} has to hold files named 0.npy, 1.npy, ...")
    return sorted(files, key=lambda file: int(file.stem))


def read_metadata(root: Path) -> list[MetadataRow]:
    """Read every line of the metadata, in the order of files and lines."""
    return [row for file in metadata_files(root) for row in _rows(file)]


def read_image(path: Path, side: int) -> np.ndarray | None:
    """Read (side * side,) uint8; None for an empty file, of which the release has one."""
    with read_errors(path):
        data = path.read_bytes()
    if not data:
        return None
    try:
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            form = f"{image.height} x {image.width} {image.mode}"
            image.verify()  # the checksums of all chunks but the last: decoding lets damage pass
        if not data.endswith(END):
            raise ValueError("its end is missing or damaged")
        if form == f"{side} x {side} L":  # others are not decoded: they may be huge
            with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
                return np.asarray(image).reshape(-1)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} is not a readable PNG: {error}") from error
    raise UserError(f"{path}: {side} x {side} L (8-bit grey) expected, {form} found")


def _rows(file: Path) -> Iterator[MetadataRow]:
    with read_errors(file):
        data = file.read_bytes()
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
        yield MetadataRow(fields[0], fields[1], int(fields[3]), number)


def key(number: int) -> str:
    """Spell the official key of an image of a series, of which a folder holds BATCH."""
    batch, index = divmod(number, BATCH)
    return f"imgs/{batch}_sample_{index}.png_{index + 1}"
