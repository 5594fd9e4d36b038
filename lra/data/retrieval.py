"""Retrieval: does one paper cite the other? Two classes, two texts byte by byte (pairs of the ACL
Anthology Network; Radev et al. 2013; Tay et al. 2021, 2.2.3).

Papers repeat in the 180,000 pairs: each text is stored once, and a pair is two row numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lra.base.errors import UserError
from lra.data.arrays import SPLITS, Example
from lra.data.sources import release
from lra.data.store import read_errors
from lra.data.task import ByteTask, Job, RawSplit, TaskOptions, byte_ids, read_by

FILES = {s: f"new_aan_pairs.{'eval' if s == 'val' else s}.tsv" for s in SPLITS}
BYTES = 10_000  # of a text that the official reader looks at
FIELDS = 5  # label, id, id, text, text
LABELS = {0.0: 0, 1.0: 1}


@dataclass
class RetrievalOptions(TaskOptions):
    path: str | None = read_by("release", default=None, place=True)


class Retrieval(ByteTask, release.ReleasedTask):
    name = "retrieval"
    title = "does one paper cite the other, byte by byte"
    classes = 2
    max_length = 4000
    miniature = "retrieval"
    folder, files = "tsv_data", FILES
    dual = True
    Options = RetrievalOptions

    def splits(self, options: RetrievalOptions, job: Job) -> list[RawSplit]:
        files = self.find_files(options, job)
        return [RawSplit(split, read_pairs(file), None) for split, file in files.items()]

    def width(self, options: RetrievalOptions, max_length: int) -> int:
        return min(max_length, BYTES)


def read_pairs(file: Path) -> Iterator[Example]:
    """Read one example per row. Quotes are bytes like any other; a row ends with LF or CRLF."""
    number = 0
    with read_errors(file), file.open("rb") as rows:
        for number, row in enumerate(rows, 1):
            fields = row.removesuffix(b"\n").removesuffix(b"\r").split(b"\t")
            where = f"{file}, line {number}"
            if len(fields) != FIELDS:
                raise UserError(f"{where}: {FIELDS} fields expected, {len(fields)} found")
            label, _, _, first, second = fields
            yield Example((_ids(where, first), _ids(where, second)), _label(where, label))
    if number == 0:
        raise UserError(f"{file} is empty")


def _ids(where: str, text: bytes) -> np.ndarray:
    if not text:
        raise UserError(f"{where}: a text is empty")
    return byte_ids(text[: BYTES + 1])  # one more, for it to count as cut


def _label(where: str, field: bytes) -> int:
    """Read numbers such as 1.0, as the official reader does."""
    try:
        return LABELS[float(field)]
    except (ValueError, KeyError):
        raise UserError(f"{where}: the label must be 0 or 1, found {field[:20]!r}") from None
