"""Retrieval: does one paper cite the other? Two classes, two texts byte by byte (pairs of the ACL
Anthology Network; Radev et al. 2013; Tay et al. 2021, 2.2.3).

Papers repeat in the 180,000 pairs: each text is stored once, and a pair is two row numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from lra.base.config import UserError
from lra.data import byte_ids
from lra.data.arrays import SPLITS, Example
from lra.data.sources import archives, release
from lra.data.store import read_errors
from lra.data.task import BUNDLED, TINY, About, Job, RawSplit, Source, Task, TaskOptions, read_by

FILES = {s: f"new_aan_pairs.{'eval' if s == 'val' else s}.tsv" for s in SPLITS}
FOLDER = "tsv_data"  # where the release keeps them
BYTES = 10_000  # of a text that the official reader looks at
FIELDS = 5  # label, id, id, text, text
LABELS = {0.0: 0, 1.0: 1}


@dataclass
class RetrievalOptions(TaskOptions):
    path: str | None = read_by("release", default=None, place=True)


class Retrieval(Task):
    name = "retrieval"
    title = "does one paper cite the other, byte by byte"
    classes = 2
    vocab = byte_ids.VOCAB
    max_length = 4000
    dual = True
    sources: ClassVar = {
        "release": Source("the official files, or files in their format"),
        "tiny": BUNDLED,
    }
    encoding: ClassVar = {"tokenizer": byte_ids.VERSION}
    Options = RetrievalOptions
    about = About(
        origin="Pairs of papers of the ACL Anthology Network (Radev et al. 2013), some linked by a "
        "citation, some not (Tay et al. 2021).",
        licence="The papers' own: those of the ACL Anthology are CC BY-NC-SA 3.0 until 2015 and "
        "CC BY 4.0 since. The benchmark's authors say that only ids may be passed on; their "
        "archive holds the texts.",
        splits="147,086 / 18,090 / 17,437, in the order of the files.",
        problems=(
            "The texts are in the 8 GB archive only, whose server has refused requests, and users "
            "could not reach the site of the network.",
            "The released code drops the last partial batch of dev and test after an unseeded "
            "shuffle, so other pairs are missing every time. Here: every pair is scored, in order, "
            "unless the protocol has that quirk.",
            "Papers occur in many pairs, and the same paper may be in train and in test.",
            "Scores of the 2020 table (53 to 60 %) lie far below those of re-implementations "
            "(above 70 %): they are not comparable.",
        ),
    )

    def splits(self, options: RetrievalOptions, job: Job) -> list[RawSplit]:
        path = self._path(options)
        files = find_files(release.root(path, FOLDER, job.data_dir))
        if path.is_file():
            job.inputs += files.values()
        return [RawSplit(split, read_pairs(file), None) for split, file in files.items()]

    def decode(self, ids: np.ndarray) -> str:
        return byte_ids.decode(ids)

    def tokenize(self, text: str) -> np.ndarray:
        return byte_ids.encode_text(text)

    def inputs(self, options: RetrievalOptions) -> list[Path]:
        path = self._path(options)
        return [path] if path.is_file() else list(find_files(path).values())

    def width(self, options: RetrievalOptions, max_length: int) -> int:
        return min(max_length, BYTES)

    def _path(self, options: RetrievalOptions) -> Path:
        if options.source == "tiny":
            return TINY / "retrieval"
        return archives.user_path(options.path, "release", release.WHAT)


def find_files(path: Path) -> dict[str, Path]:
    return release.split_files(path, FOLDER, FILES)


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
    return byte_ids.encode(text[: BYTES + 1])  # one more, for it to count as cut


def _label(where: str, field: bytes) -> int:
    """Read numbers such as 1.0, as the official reader does."""
    try:
        return LABELS[float(field)]
    except (ValueError, KeyError):
        raise UserError(f"{where}: the label must be 0 or 1, found {field[:20]!r}") from None
