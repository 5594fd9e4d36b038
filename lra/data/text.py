"""Text: is a film review good or bad? Two classes, byte by byte (IMDB; Maas et al. 2011; Tay et al.
2021, 2.2.2).

    aclImdb/{train,test}/{neg,pos}/<number>_<stars>.txt

The official code has no dev split: it selects on the test set, and so does all code built on it.
`dev=train` cuts one from train instead, the last 10 % in the official order. The protocol decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from lra.base.config import Dev
from lra.base.errors import UserError
from lra.data.arrays import SPLITS, Example
from lra.data.parallel import track
from lra.data.sources import archives, tfds
from lra.data.task import ByteTask, Job, RawSplit, byte_ids

IMDB = tfds.Dataset("imdb_reviews/plain_text:1.0.0", archive="aclImdb_v1.tar.gz")
LABELS = ("neg", "pos")
MOST = 2**30  # bytes of all reviews: a small archive can hold any number
# TensorFlow Datasets takes every file below those folders but hidden ones and backups of editors.
REVIEW = re.compile(r"aclImdb/(train|test)/(neg|pos)/(?:.*/)?[^./][^/]*(?<!~)")


@dataclass
class TextOptions(tfds.PublishedOptions):
    dev: Dev = Dev.train


class Text(ByteTask, tfds.PublishedTask):
    name = "text"
    title = "good or bad film reviews, byte by byte"
    classes = 2
    max_length = 4000  # the released config has 1000, the paper 1000 to 4000
    dataset = IMDB
    miniature = "text"
    sources: ClassVar = tfds.sources_of(IMDB, "the published aclImdb_v1")
    Options = TextOptions

    def splits(self, options: TextOptions, job: Job) -> list[RawSplit]:
        train, test = (
            [reviews[i] for i in tfds.order(split, [review.key for review in reviews])]
            for split, reviews in read_reviews(self.archive(options, job)).items()
        )
        val = test
        if options.dev is Dev.train:
            n = len(train)
            train, val = train[tfds.percent(n, 0, 90)], train[tfds.percent(n, 90, 100)]
        parts = zip(SPLITS, (train, val, test), strict=True)
        return [
            RawSplit(split, (Example(byte_ids(r.text), r.label) for r in reviews), len(reviews))
            for split, reviews in parts
        ]

    def provenance(self, options: TextOptions) -> str:
        if options.source == "files" and options.checksum is tfds.Checksum.any:
            return "files in the format of aclImdb_v1, not checked against it"
        return super().provenance(options)


class Review(NamedTuple):
    key: str  # aclImdb/train/neg/0_3.txt
    text: bytes
    label: int


def read_reviews(archive: Path) -> dict[str, list[Review]]:
    """Read the labelled reviews of `train` and `test`, in no particular order; ASCII whitespace at
    both ends is removed, as by TensorFlow Datasets, and nothing else is changed."""
    reviews: dict[tuple[str, str], dict[str, Review]] = {
        (split, label): {} for split in ("train", "test") for label in LABELS
    }
    total = 0
    with archives.opened(archive) as files:
        for key, content in track(files, f"reading {archive.name}"):
            if not (place := REVIEW.fullmatch(key)):
                continue
            split, label = place.groups()
            text = content.read().strip()
            if key in reviews[split, label] or not text:
                raise UserError(f"{archive}: the review {key} is empty, or comes twice")
            if (total := total + len(text)) > MOST:
                raise UserError(f"{archive} holds more than {MOST:,} bytes of reviews")
            reviews[split, label][key] = Review(key, text, LABELS.index(label))
    if empty := ["/".join(place) for place, part in reviews.items() if not part]:
        raise UserError(f"{archive} holds no reviews in aclImdb/{empty[0]}")
    return {
        split: [review for label in LABELS for review in reviews[split, label].values()]
        for split in ("train", "test")
    }
