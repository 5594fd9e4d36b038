"""`lra evaluate`, `lra predict` and `lra export`: what can be done with a trained network."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lra.base.config import UserError, first_line, readable
from lra.base.disk import disk_errors, write_atomically
from lra.data.arrays import SPLITS

if TYPE_CHECKING:
    from lra.data.task import Task

# Pillow hands some other formats to programs.
PICTURES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".gif": "GIF",
            ".webp": "WEBP"}  # fmt: skip
MOST_PIXELS = 2**24
COLUMNS = (["text1", "text2"], ["text"], ["Source"])  # of a table with a head
DESCRIPTION = """\
FILE is a text with one example per line (- for standard input; a pair is two texts with a tab
between), a .tsv or .csv table with a column text (or text1 and text2), a picture, a .npy array of
ids, or a folder of texts or pictures, one example per file."""


def add_parsers(commands: Any) -> None:
    for name, about, run in (
        ("evaluate", "test a trained network on a split of its data", _evaluate),
        ("predict", "answers of a trained network to your own examples, as JSON lines", _predict),
        ("export", "write a trained network, its settings and a card into a folder", _export),
    ):
        about_file = DESCRIPTION if name == "predict" else None
        parser = commands.add_parser(name, help=about, description=about_file)
        parser.add_argument(
            "folder", type=Path, metavar="RUN", help="a run's folder, or one of lra export"
        )
        if name == "predict":
            parser.add_argument("file", type=Path, metavar="FILE", help="examples, see above")
            parser.add_argument("--to", type=Path, metavar="FILE", help="default: standard output")
        elif name == "export":
            parser.add_argument("--to", type=Path, required=True, help="a new folder")
        else:
            parser.add_argument("--split", choices=SPLITS, default="test")
        parser.add_argument("--data-dir", type=Path, metavar="DIR", help="default: the run's")
        parser.add_argument("--device", default="cpu", help="such as cuda (default: cpu)")
        parser.set_defaults(run=run)


def _load(arguments: argparse.Namespace) -> Any:
    import torch

    from lra.results.bundle import open_network

    try:
        torch.zeros(1, device=arguments.device).cpu()
    except (RuntimeError, AssertionError) as error:  # unknown, not there, or without numbers
        reason = first_line(error)
        raise UserError(f"--device {arguments.device} cannot be used: {reason}") from error
    return open_network(arguments.folder, data_dir=arguments.data_dir, device=arguments.device)


def _evaluate(arguments: argparse.Namespace) -> None:
    answers = _load(arguments).evaluate(arguments.split)
    print(
        f"{arguments.split} accuracy {answers.accuracy:.2%}, loss {answers.loss:.3f}, "
        f"{len(answers.labels):,} answers"
    )


def _export(arguments: argparse.Namespace) -> None:
    from lra.results import bundle

    for path in bundle.write_bundle(_load(arguments), arguments.to):
        print(path)


def _predict(arguments: argparse.Namespace) -> None:
    trained = _load(arguments)
    names, examples = zip(*examples_of(arguments.file, trained.task), strict=True)
    classes, probabilities = trained.predict(examples)
    rows = zip(names, classes.tolist(), probabilities.round(6).tolist(), strict=True)
    keys = ("example", "answer", "probabilities")
    text = "".join(f"{json.dumps(dict(zip(keys, row, strict=True)))}\n" for row in rows)
    if arguments.to is None:
        sys.stdout.write(text)
        return
    with disk_errors(arguments.to):
        arguments.to.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.to, text.encode())
    print(arguments.to)


# ---------------------------------------------------------------------- reading examples


def examples_of(path: Path, task: Task) -> list[tuple[str, Any]]:
    """Read names and contents of the examples in a file or folder."""
    kind, rows = path.suffix.lower(), []
    with readable(path, "lra predict --help says what it may be"):
        if path.is_dir():
            files = sorted(p for p in path.iterdir() if p.is_file() and p.name[0] != ".")
            return [(file.name, _whole(file, task)) for file in files]
        if kind in PICTURES:
            return [(path.name, _picture(path))]
        if kind == ".npy":
            rows = [*np.load(path, allow_pickle=False)]
        elif kind in (".tsv", ".csv"):
            rows = _table(path, task)
        else:
            rows = [_example(line, task) for line in _text(path).splitlines() if line.strip()]
    if not rows:
        raise UserError(f"{path} holds no example")
    return [(str(i), row) for i, row in enumerate(rows)]


def _whole(file: Path, task: Task) -> Any:
    """Read one example of a folder: a picture, or all of a text."""
    return _picture(file) if file.suffix.lower() in PICTURES else _example(_text(file), task)


def _example(text: str, task: Task) -> Any:
    return text.split("\t", 1) if task.dual else text


def _text(path: Path) -> str:
    if str(path) == "-":
        return sys.stdin.read()
    return path.read_bytes().decode("utf-8", "surrogateescape")


def _table(path: Path, task: Task) -> list[Any]:
    import pandas as pd

    table = pd.read_csv(path, sep="," if path.suffix == ".csv" else "\t", dtype=str,
                        keep_default_na=False, encoding_errors="surrogateescape")  # fmt: skip
    for columns in COLUMNS:
        if (len(columns) == 2) is task.dual and {*columns} <= {*table}:
            rows = table[columns].to_numpy().tolist()
            return rows if task.dual else [text for (text,) in rows]
    raise UserError(f"no column is named text, or text1 and text2 for pairs, but {[*table]}")


def _picture(path: Path) -> np.ndarray:
    from PIL import Image

    formats = list(PICTURES.values())
    with readable(path, "give a picture"), Image.open(path, formats=formats) as image:
        if image.width * image.height > MOST_PIXELS:  # a small file may say that it is huge
            raise UserError(f"it has {image.width} x {image.height} pixels")
        return np.asarray(image if image.mode == "L" else image.convert("RGB"))
