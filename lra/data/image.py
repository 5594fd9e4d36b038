"""Image: which of ten things does a 32 x 32 picture show? (CIFAR-10 in grey, pixel by pixel;
Krizhevsky 2009; Tay et al. 2021, 2.2.4).

Ids are grey levels 0 to 255, row by row; black shares its id with padding, which images lack.
Train, val and test are TensorFlow Datasets' train[:90%], train[90%:] and test, in its order,
whatever the source. Image8 is the same at 8 x 8, for runs of minutes; image16 at 16 x 16, whose
levels networks read as numbers.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from lra.base.errors import UserError, printable
from lra.data.arrays import SPLITS, Example, Scale
from lra.data.sources import archives, tfds
from lra.data.task import Job, RawSplit

CIFAR10 = tfds.Dataset("cifar10:3.0.2", archive="cifar-10-binary.tar.gz")
FOLDER = "cifar-10-batches-bin"  # in the archive
FILES = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
RECORD = 1 + 3 * 1024  # bytes of an image: the label; red, green and blue, each row by row
NOTE = "PROVENANCE.txt"  # of a copy that is not the original: what it is, in its first line
GREY = "grey-v1"  # change it when the same colours give other levels
SIDE = 32  # of the published pictures
BLOCKS = "mean-v1"  # change it when the same levels give other ones in a smaller picture


class Image(tfds.PublishedTask):
    name = "image"
    title = "which of ten things a picture shows"
    classes = 10
    vocab = 256
    max_length = SIDE * SIDE
    grid = (SIDE, SIDE)
    # state-spaces/s4 e757cef, src/dataloaders/basic.py
    scale = Scale((122.6,), (61.0,))
    dataset = CIFAR10
    miniature = "image"
    sources: ClassVar = tfds.sources_of(CIFAR10, "the published CIFAR-10 files")
    encoding: ClassVar = {"grey": GREY}
    Options = tfds.PublishedOptions

    def splits(self, options: tfds.PublishedOptions, job: Job) -> list[RawSplit]:
        train, test = (
            pictures.take(tfds.order(split, range(len(pictures.labels))))
            for split, pictures in read_pictures(self.archive(options, job)).items()
        )
        n = len(train.labels)
        parts = train.take(tfds.percent(n, 0, 90)), train.take(tfds.percent(n, 90, 100)), test
        return [
            RawSplit(split, pictures.examples(self.grid[0]), len(pictures.labels))
            for split, pictures in zip(SPLITS, parts, strict=True)
        ]

    def grey(self, picture: np.ndarray) -> np.ndarray:
        return grey(picture.reshape(1, -1, 3).swapaxes(1, 2))[0].reshape(picture.shape[:2])

    def provenance(self, options: tfds.PublishedOptions) -> str:
        if options.source == "files" and options.checksum is tfds.Checksum.any:
            there = options.path and Path(options.path).expanduser().exists()
            note = read_note(*self.inputs(options)) if there else None  # it may be gone by now
            return f"files in the format of CIFAR-10, not the published ones: {note or 'unknown'}"
        return super().provenance(options)

    def width(self, options: tfds.PublishedOptions, max_length: int) -> int:
        return self.max_length  # a picture is not cut


class Image8(Image):
    name = "image8"
    title = "which of ten things a picture of 8 x 8 shows"
    probe = True
    max_length = 8 * 8
    grid = (8, 8)
    encoding: ClassVar = {**Image.encoding, "blocks": BLOCKS}


class Image16(Image):
    name = "image16"
    title = "which of ten things a picture of 16 x 16 shows, in numbers"
    probe = True
    max_length = 16 * 16
    grid = (16, 16)
    numeric = True
    encoding: ClassVar = {**Image.encoding, "blocks": BLOCKS}


def grey(planes: np.ndarray) -> np.ndarray:
    """Turn (N, 3, P) red, green and blue into (N, P) levels, to the last bit as
    tf.image.rgb_to_grayscale does: float32 throughout, the reciprocal of 255, the sums from left to
    right, and truncation at the end."""
    scale, weights = np.float32(1 / 255), np.array([0.2989, 0.5870, 0.1140], np.float32)
    red, green, blue = (
        planes[:, i].astype(np.float32) * scale * weights[i] for i in range(len(weights))
    )
    return ((red + green + blue) * np.float32(255.5)).astype(np.uint8)


def shrunk(levels: np.ndarray, side: int) -> np.ndarray:
    """Shrink a published picture to side x side: means of blocks, halves rounded up."""
    block = SIDE // side
    blocks = levels.reshape(side, block, side, block).astype(np.uint32)
    sums = blocks.sum(axis=(1, 3)).reshape(-1)
    return ((2 * sums + block**2) // (2 * block**2)).astype(np.uint8)


class Pictures(NamedTuple):
    levels: np.ndarray  # (N, 1024) uint8
    labels: np.ndarray  # (N,) uint8

    def take(self, index: slice | np.ndarray) -> Pictures:
        return Pictures(self.levels[index], self.labels[index])

    def examples(self, side: int) -> Iterator[Example]:
        for levels, label in zip(self.levels, self.labels.tolist(), strict=True):
            yield Example(shrunk(levels, side), label)


def read_pictures(archive: Path) -> dict[str, Pictures]:
    """Read train and test, in the order of the published files."""
    batches: dict[str, Pictures] = {}
    names = [*FILES["train"], *FILES["test"]]
    with archives.opened(archive) as files:
        for at, (path, content) in enumerate(files):
            folder, _, name = path.rpartition("/")
            if name == NOTE and at > 0:
                raise UserError(f"{archive} holds {path}, which has to be its first file")
            if folder != FOLDER or name not in names:
                continue
            records = content.read()
            if name in batches or not records or len(records) % RECORD:
                raise UserError(
                    f"{archive} is damaged: {name} comes twice, or its {len(records):,} bytes are "
                    f"no whole number of images of {RECORD:,} bytes"
                )
            pixels = np.frombuffer(records, np.uint8).reshape(-1, RECORD)
            levels = grey(pixels[:, 1:].reshape(-1, 3, RECORD // 3))
            batches[name] = Pictures(levels, pixels[:, 0])
    if missing := [name for name in names if name not in batches]:
        raise UserError(f"{archive} is not complete: {' and '.join(missing)} not found")
    return {
        split: Pictures(*map(np.concatenate, zip(*(batches[name] for name in part), strict=True)))
        for split, part in FILES.items()
    }


def read_note(archive: Path) -> str | None:
    """Read the first line of the NOTE of a copy that is not the original: the first file."""
    with archives.opened(archive) as files:
        name, content = next(files, ("", io.BytesIO()))
        text = content.read() if name.rpartition("/")[2] == NOTE else b""
    return printable(text.decode("utf-8", "replace").partition("\n")[0].strip())[:200] or None
