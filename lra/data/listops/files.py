"""The official ListOps files: `<prefix>_{train,val,test}.tsv`, columns Source and Target, one
expression a row."""

from __future__ import annotations

import contextlib
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
    """Find the three files of a folder of the release, of the folder that holds them, or of a
    prefix such as `dir/basic`."""
    if path.is_dir():
        for folder in (path, *release.folders(path, FOLDER)):
            prefixes = sorted(p.name[: -len("_train.tsv")] for p in folder.glob("*_train.tsv"))
            if prefixes:
                break
        else:
            raise UserError(f"{path} holds no file <prefix>_train.tsv, nor does {path}/{FOLDER}")
        if len(prefixes) > 1 and PREFIX not in prefixes:
            raise UserError(
                f"{path} holds several sets ({', '.join(prefixes)}): say path={path}/<prefix>"
            )
        path = folder / (PREFIX if PREFIX in prefixes else prefixes[0])
    files = {split: path.with_name(f"{path.name}_{split}.tsv") for split in SPLITS}
    missing = [str(file) for file in files.values() if not file.is_file()]
    if missing:
        raise UserError(f"ListOps is not complete: {' and '.join(missing)} not found")
    return files


def read_examples(file: Path, *, brackets: bool = True) -> Iterator[Example]:
    """Read ids and value of every row; errors name file and line."""
    with read_errors(file):
        lines = file.open(encoding="utf-8-sig")  # universal newlines: CRLF and LF are one
    with lines:
        numbered = _lines(file, lines)
        source, target, columns = _header(file, next(numbered, (1, ""))[1])
        count = 0
        for number, line in numbered:
            fields = [_unquote(field) for field in line.split("\t")]
            where = f"{file}, line {number}"
            if len(fields) != columns:
                raise UserError(f"{where}: {columns} fields expected, {len(fields)} found")
            yield Example(_ids(where, fields[source], brackets), _label(where, fields[target]))
            count += 1
    if count == 0:
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


def _lines(file: Path, lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        for number, line in enumerate(lines, 1):
            yield number, line.removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{file}, after line {number}: not text ({error.reason})") from error


def _header(file: Path, line: str) -> tuple[int, int, int]:
    names = [_unquote(field) for field in line.split("\t")]
    for name in ("Source", "Target"):
        if names.count(name) != 1:
            raise UserError(
                f"{file}, line 1: a header with one column {name} expected, "
                f"found {', '.join(map(repr, names))[:200]}"
            )
    return names.index("Source"), names.index("Target"), len(names)


def _unquote(field: str) -> str:
    return (
        field[1:-1].replace('""', '"') if len(field) > 1 and field[0] == field[-1] == '"' else field
    )


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
