"""`lra evaluate`, `lra predict` and `lra export`: what can be done with a trained network."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lra.base.config import UserError, csv_text, first_line, readable
from lra.base.disk import disk_errors, write_atomically
from lra.data.arrays import SPLITS
from lra.data.store import read_errors

if TYPE_CHECKING:
    from lra.data.task import Task
    from lra.training.trained import Predictions

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")  # Pillow hands some others to programs
MOST_PIXELS = 2**24
COLUMNS = (("text1", "text2"), ("text",), ("Source",))  # of a table with a head
DESCRIPTION = """\
FILE is a text with one example per line (- for standard input; a pair is two texts with a tab
between), a .tsv or .csv table with a column text (or text1 and text2), a picture, a .npy array of
ids, or a folder of texts or pictures, one example per file."""


def add_parsers(commands: Any) -> None:
    evaluate = commands.add_parser("evaluate", help="test a trained network on a split of its data")
    evaluate.add_argument("--split", choices=SPLITS, default="test")
    evaluate.set_defaults(run=_evaluate)

    predict = commands.add_parser(
        "predict", help="answers of a trained network to your own examples", description=DESCRIPTION
    )
    predict.set_defaults(run=_predict)

    export = commands.add_parser(
        "export", help="write a trained network, its settings and a card into a folder"
    )
    export.set_defaults(run=_export)

    for parser in (evaluate, predict, export):
        parser.add_argument(
            "folder", type=Path, metavar="RUN", help="a run's folder, or one of lra export"
        )
        parser.add_argument("--data-dir", type=Path, default=Path("data"), metavar="DIR")
        parser.add_argument("--device", default="cpu", help="such as cuda (default: cpu)")
    predict.add_argument("file", type=Path, metavar="FILE", help="examples, see above")
    predict.add_argument("--format", choices=("csv", "jsonl"), default="csv")
    predict.add_argument("--to", type=Path, metavar="FILE", help="default: standard output")
    export.add_argument("--to", type=Path, required=True, metavar="DIR", help="a new folder")


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
    text_of = _csv if arguments.format == "csv" else _jsonl
    text = text_of(names, trained.predict(examples))
    if arguments.to is None:
        sys.stdout.write(text)
        return
    with disk_errors(arguments.to):
        arguments.to.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.to, text.encode())
    print(arguments.to)


def _csv(names: Sequence[str], predictions: Predictions) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["example", "answer", "probability"])
    classes, best = predictions.classes, predictions.probabilities.max(-1)
    for name, answers, p in zip(names, classes, best, strict=True):
        words = (" ".join(map(str, np.atleast_1d(v).round(4).tolist())) for v in (answers, p))
        writer.writerow([csv_text(name), *words])
    return out.getvalue()


def _jsonl(names: Sequence[str], predictions: Predictions) -> str:
    classes, probabilities = predictions.classes, predictions.probabilities.round(6)
    rows = zip(names, classes.tolist(), probabilities.tolist(), strict=True)
    keys = ("example", "answer", "probabilities")
    return "".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows)


# ---------------------------------------------------------------------- reading examples


def examples_of(path: Path, task: Task) -> list[tuple[str, Any]]:
    """Read names and contents of the examples in a file or folder."""
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
        examples = [(file.name, _whole(file, task)) for file in files]
    elif path.suffix.lower() in PICTURES:
        examples = [(path.name, _picture(path))]
    elif path.suffix == ".npy":
        examples = [(str(i), row) for i, row in enumerate(_array(path))]
    elif path.suffix in (".tsv", ".csv"):
        examples = [(str(i), row) for i, row in enumerate(_table(path, task))]
    else:
        lines = _text(path).splitlines()
        examples = [(str(i), _example(line, task)) for i, line in enumerate(lines) if line.strip()]
    if not examples:
        raise UserError(f"{path} holds no example")
    return examples


def _whole(file: Path, task: Task) -> Any:
    """Read one example of a folder: a picture, or all of a text."""
    return _picture(file) if file.suffix.lower() in PICTURES else _example(_text(file), task)


def _example(text: str, task: Task) -> Any:
    return text.split("\t", 1) if task.dual else text


def _text(path: Path) -> str:
    if str(path) == "-":
        return sys.stdin.read()
    with read_errors(path):
        return path.read_bytes().decode("utf-8", "surrogateescape")


def _table(path: Path, task: Task) -> Iterator[Any]:
    delimiter = "," if path.suffix == ".csv" else "\t"
    reader = csv.DictReader(io.StringIO(_text(path), newline=""), delimiter=delimiter)
    head = reader.fieldnames or []
    wanted = [names for names in COLUMNS if (len(names) == 2) is task.dual]
    columns = next((names for names in wanted if set(names) <= set(head)), None)
    if columns is None:
        raise UserError(
            f"{path} needs a head with {' and '.join(wanted[0])}; it has "
            f"{', '.join(map(repr, head))[:200]}"
        )
    with readable(path, "give a table with shorter cells"):
        for row in reader:
            values = [row[name] or "" for name in columns]
            yield values if task.dual else values[0]


def _picture(path: Path) -> np.ndarray:
    from PIL import Image

    with readable(path, "give a picture"), Image.open(path, formats=FORMATS) as image:
        if image.width * image.height > MOST_PIXELS:  # a small file may say that it is huge
            raise UserError(f"it has {image.width} x {image.height} pixels")
        return np.asarray(image if image.mode == "L" else image.convert("RGB"))


def _array(path: Path) -> np.ndarray:
    with readable(path, "give an array that numpy.save wrote"):
        array = np.load(path, allow_pickle=False)
        if array.ndim == 0:
            raise UserError("it holds one number")
        return array
