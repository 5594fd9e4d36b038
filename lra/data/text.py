"""Text: is a film review good or bad? Two classes, byte by byte (IMDB; Maas et al. 2011; Tay et al.
2021, 2.2.2).

The official code has no dev split: it selects on the test set, and so does all code built on it.
`dev=train` cuts one from train instead, the last 10 % in the official order. The protocol decides.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from lra.base.config import Dev
from lra.data import byte_ids
from lra.data.arrays import SPLITS, Example
from lra.data.sources import archives, imdb, tfds
from lra.data.sources.archives import Checksum
from lra.data.sources.tfds_order import order, percent
from lra.data.task import BUNDLED, TINY, About, Job, RawSplit, Source, Task, TaskOptions, read_by

DATASET = tfds.Dataset("imdb_reviews", "1.0.0", archive=imdb.ARCHIVE, config="plain_text")

Labelled = list[tuple[bytes, int]]


@dataclass
class TextOptions(TaskOptions):
    dev: Dev = Dev.train
    path: str | None = read_by("files", default=None, place=True)
    checksum: Checksum = read_by("files", default=Checksum.official)  # noqa: RUF009


class Text(Task):
    name = "text"
    title = "good or bad film reviews, byte by byte"
    classes = 2
    vocab = byte_ids.VOCAB
    max_length = 4000  # the released config has 1000, the paper 1000 to 4000
    sources: ClassVar = {
        "tfds": Source(f"TensorFlow Datasets, {DATASET}", {"dataset": str(DATASET)}),
        "files": Source("the published aclImdb_v1"),
        "tiny": BUNDLED,
    }
    encoding: ClassVar = {"tokenizer": byte_ids.VERSION}
    Options = TextOptions
    about = About(
        origin="IMDB reviews of 1 to 4 or 7 to 10 stars of 10, at most 30 of a film (Maas et al. "
        "2011), read as bytes (Tay et al. 2021).",
        licence="None stated. The authors ask for a citation of Maas et al., ACL 2011.",
        splits="22,500 / 2,500 / 25,000: val is the last 10 % of train in the order of TensorFlow "
        "Datasets. With dev=test 25,000 / 25,000 / 25,000: val is test.",
        problems=(
            "There is no dev split. All public codes select on test; protocol=luna does not.",
            "The released config keeps 1,000 bytes, the paper reports the best of 1,000 to 4,000, "
            "others keep 4,000. Every record has the length.",
            "A cut may fall within a character of several bytes; some reviews hold HTML, and bytes "
            "that are not UTF-8 are kept as they are.",
            "Some reviews come twice, in train and in test too; they are counted above.",
        ),
    )

    def splits(self, options: TextOptions, job: Job) -> list[RawSplit]:
        train, test = self._splits(options, job)
        val = test
        if options.dev is Dev.train:
            n = len(train)
            train, val = train[percent(n, 0, 90)], train[percent(n, 90, 100)]
        parts = zip(SPLITS, (train, val, test), strict=True)
        return [RawSplit(split, _examples(reviews), len(reviews)) for split, reviews in parts]

    def decode(self, ids: np.ndarray) -> str:
        return byte_ids.decode(ids)

    def provenance(self, options: TextOptions) -> str:
        if options.source == "files" and options.checksum is Checksum.any:
            return "files in the format of aclImdb_v1, not checked against it"
        return super().provenance(options)

    def tokenize(self, text: str) -> np.ndarray:
        return byte_ids.encode_text(text)

    def inputs(self, options: TextOptions) -> list[Path]:
        """Name the archive; files of an unpacked copy are checked when they are read."""
        place = self._place(options)
        return [place] if place.is_file() else []

    def needs_download(self, options: TextOptions, data_dir: Path) -> bool:
        return options.source == "tfds" and not tfds.is_there(DATASET, data_dir)

    def _splits(self, options: TextOptions, job: Job) -> list[Labelled]:
        if options.source == "tfds":
            job.inputs += tfds.prepare(DATASET, job.data_dir)
            return [_stored(split, job.data_dir) for split in ("train", "test")]
        checksum = Checksum.any if options.source == "tiny" else options.checksum
        published = imdb.read_reviews(self._place(options), checksum)
        return [
            [(r[i].text, r[i].label) for i in order(split, [review.key for review in r])]
            for split, r in published.items()
        ]

    def _place(self, options: TextOptions) -> Path:
        if options.source == "tiny":
            return imdb.find_place(TINY / "text")
        what = f"{imdb.ARCHIVE} or the folder that holds it or {imdb.FOLDER}"
        return imdb.find_place(archives.user_path(options.path, "files", what))


def _stored(split: str, data_dir: Path) -> Labelled:
    records = itertools.chain.from_iterable(tfds.read_records(DATASET, split, data_dir))
    return [(record["text"], int(record["label"])) for record in records]


def _examples(reviews: Labelled) -> Iterator[Example]:
    for text, label in reviews:
        yield Example(byte_ids.encode(text), label)
