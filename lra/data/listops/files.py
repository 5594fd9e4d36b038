"""The official ListOps files: `<prefix>_{train,val,test}.tsv`, columns Source and Target, one
expression a row."""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from lra.base.config import UserError
from lra.base.disk import disk_errors
from lra.data.arrays import SPLITS, Example
from lra.data.listops.tokens import CLOSE, binary, encode, fault
from lra.data.sources import release
from lra.data.store import read_errors

PREFIX = "basic"  # what the official generator calls its files
ENDINGS = tuple(f"_{split}.tsv" for split in SPLITS)
FOLDER = "listops-1000"  # where the release keeps them


def find_files(path: Path) -> dict[str, Path]:
    """Find the three files of a folder, of the release, or of a prefix such as `dir/basic`."""
    folder, prefix = (path, PREFIX) if path.is_dir() else (path.parent, path.name)
    return release.split_files(folder, FOLDER, {s: f"{prefix}_{s}.tsv" for s in SPLITS})


def read_examples(file: Path, *, brackets: bool = True) -> Iterator[Example]:
    """Read ids and value of every row; errors name file and line."""
    with read_errors(file), file.open(encoding="utf-8-sig", newline="") as lines:
        rows = csv.reader(lines, delimiter="\t")
        try:
            header = next(rows, [])
            if [header.count(name) for name in ("Source", "Target")] != [1, 1]:
                raise UserError(
                    f"{file}, line 1: a header with one column Source and one column Target "
                    f"expected, found {', '.join(map(repr, header))[:200]}"
                )
            for row in rows:
                where = f"{file}, line {rows.line_num}"
                if len(row) != len(header):
                    raise UserError(f"{where}: {len(header)} fields expected, {len(row)} found")
                fields = dict(zip(header, row, strict=True))
                ids = _ids(where, fields["Source"], brackets)
                yield Example(ids, _label(where, fields["Target"]))
        except (UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{file}, after line {rows.line_num}: not text ({error})") from error
    if rows.line_num < 2:
        raise UserError(f"{file} has no rows below its header")


def write_expressions(file: Path, expressions: Iterable[tuple[np.ndarray, int]]) -> None:
    """Write the official form, CRLF included; the file appears when it is complete."""
    partial = file.with_name(f".{file.name}.partial")
    try:
        with disk_errors(file.parent):
            file.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("w", encoding="ascii", newline="") as out:
                out.write("Source\tTarget\r\n")
                out.writelines(f"{binary(ids)}\t{label}\r\n" for ids, label in expressions)
                out.flush()
                os.fsync(out.fileno())
            partial.replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def _ids(where: str, source: str, brackets: bool) -> np.ndarray:
    try:
        ids = encode(source)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    if wrong := fault(ids):
        raise UserError(f"{where}: not an expression, {wrong}")
    return ids if brackets else ids[ids != CLOSE]


def _label(where: str, target: str) -> int:
    if len(target) != 1 or target not in "0123456789":
        raise UserError(f"{where}: Target must be a digit, found {target[:20]!r}")
    return int(target)
