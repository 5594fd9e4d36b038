"""Examples of the user's in a file or folder, which `lra predict` reads."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from lra.base.disk import plain_file
from lra.base.errors import UserError, readable
from lra.data.task import Task

# Pillow hands some other formats to programs.
PICTURES = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".bmp": "BMP",
    ".gif": "GIF",
    ".webp": "WEBP",
}
MOST_PIXELS = 2**24
LONGEST = 2**30  # letters of a text in a table
COLUMNS = (["text1", "text2"], ["text"], ["Source"])  # of a table with a head


def read_examples(path: Path, task: Task) -> list[tuple[str, Any]]:
    """Read names and contents; of a folder, an example is a picture or all of a text."""
    kind, rows = path.suffix.lower(), []
    with readable(path, "lra predict --help says what it may be"):
        if path.is_dir():
            files = sorted(p for p in path.iterdir() if p.is_file() and p.name[0] != ".")
            return [(file.name, _whole(file, task)) for file in files]
        if kind in PICTURES:
            return [(path.name, _whole(path, task))]
        if kind == ".npy":
            rows = [*np.load(plain_file(path), allow_pickle=False)]
        elif kind in (".tsv", ".csv"):
            rows = _table(path, task)
        else:
            rows = [_example(line, task) for line in _text(path).split("\n") if line.strip()]
    if not rows:
        raise UserError(f"{path} holds no example")
    return [(str(i), row) for i, row in enumerate(rows)]


def read_prompt(path: Path) -> str:
    """Read all of a text, to be continued; a line break at its end is the editor's."""
    with readable(path, "give a file with the text to continue"):
        return _text(path).removesuffix("\n")


def _whole(file: Path, task: Task) -> Any:
    if file.suffix.lower() not in PICTURES:
        return _example(_text(file), task)
    formats = list(PICTURES.values())
    with readable(file, "give a picture"), Image.open(file, formats=formats) as image:
        if image.width * image.height > MOST_PIXELS:  # a small file may say that it is huge
            raise UserError(f"it has {image.width} x {image.height} pixels")
        return np.asarray(image if image.mode == "L" else image.convert("RGB"))


def _example(text: str, task: Task) -> Any:
    return text.split("\t", 1) if task.dual else text


def _text(path: Path) -> str:
    if str(path) == "-":
        return sys.stdin.read()
    return path.read_bytes().decode("utf-8", "surrogateescape")


def _table(path: Path, task: Task) -> list[Any]:
    kind = "excel" if path.suffix.lower() == ".csv" else "excel-tab"
    text = io.StringIO(_text(path).removeprefix("\ufeff"), newline="")
    csv.field_size_limit(LONGEST)
    lines = [row for row in csv.reader(text, kind, strict=True) if row]
    for number, row in enumerate(lines, 1):  # a text with a comma, but without quotes, is cut
        if len(row) != len(lines[0]):
            raise UserError(
                f"row {number} has {len(row)} fields, and the head has {len(lines[0])}: put "
                'quotes around a text that holds the separator ("a, b")'
            )
    table = pd.DataFrame(lines[1:], columns=lines[0] if lines else [])
    for columns in COLUMNS:
        if (len(columns) == 2) is task.dual and {*columns} <= {*table}:
            rows = table[columns].to_numpy().tolist()
            return rows if task.dual else [text for (text,) in rows]
    raise UserError(f"no column is named text, or text1 and text2 for pairs, but {[*table]}")
