"""The official ListOps files: basic_{train,val,test}.tsv, columns Source and Target, one expression
a row."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from lra.base.config import UserError
from lra.data.arrays import SPLITS, Example
from lra.data.listops.tokens import CLOSE, encode, fault
from lra.data.sources import release
from lra.data.store import read_errors

NAMES = {split: f"basic_{split}.tsv" for split in SPLITS}
FOLDER = "listops-1000"  # where the release keeps them


def find_files(path: Path) -> dict[str, Path]:
    return release.split_files(path, FOLDER, NAMES)


def read_examples(file: Path, *, brackets: bool = True) -> Iterator[Example]:
    """Read ids and value of every row; errors name file and line."""
    with read_errors(file), file.open(encoding="utf-8-sig", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t")
        try:
            for row in rows:
                yield _example(f"{file}, line {rows.line_num}", row, brackets)
        except (UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{file}, after line {rows.line_num}: not text ({error})") from error
    if rows.line_num < 2:
        raise UserError(f"{file} has no rows below its header")


def _example(where: str, row: dict[str, str], brackets: bool) -> Example:
    if None in row or None in row.values() or not {"Source", "Target"} <= row.keys():
        raise UserError(f"{where}: columns Source and Target, and one field for each are expected")
    try:
        ids = encode(row["Source"])
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    if wrong := fault(ids):
        raise UserError(f"{where}: not an expression, {wrong}")
    label = row["Target"]
    if label not in list("0123456789"):
        raise UserError(f"{where}: Target must be a digit, found {label[:20]!r}")
    return Example(ids if brackets else ids[ids != CLOSE], int(label))
