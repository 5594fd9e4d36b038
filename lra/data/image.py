"""Image: which of ten things does a 32 x 32 picture show? (CIFAR-10 in grey, pixel by pixel;
Krizhevsky 2009; Tay et al. 2021, 2.2.4).

Ids are grey levels 0 to 255, row by row; black shares its id with padding, which images lack.
Train, val and test are TensorFlow Datasets' train[:90%], train[90%:] and test, in its order,
whatever the source. Image8 is the same at 8 x 8, for runs of minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from lra.data.arrays import SPLITS, Example
from lra.data.sources import archives, cifar, tfds
from lra.data.sources.archives import Checksum
from lra.data.sources.tfds_order import order, percent
from lra.data.task import BUNDLED, TINY, About, Job, RawSplit, Source, Task, TaskOptions, read_by

DATASET = tfds.Dataset("cifar10", "3.0.2", archive=cifar.BINARY.archive)
GREY = "grey-v1"  # change it when the same colours give other levels
SIDE = 32  # of the published pictures
BLOCKS = "mean-v1"  # change it when the same levels give other ones in a smaller picture
SHADES = " .:-=+*#%@"


@dataclass
class ImageOptions(TaskOptions):
    path: str | None = read_by("files", default=None, place=True)
    checksum: Checksum = read_by("files", default=Checksum.official)  # noqa: RUF009


class Image(Task):
    name = "image"
    title = "which of ten things a picture shows"
    classes = cifar.CLASSES
    vocab = 256
    max_length = SIDE * SIDE
    grid = (SIDE, SIDE)
    sources: ClassVar = {
        "tfds": Source(f"TensorFlow Datasets, {DATASET}", {"dataset": str(DATASET)}),
        "files": Source("the published CIFAR-10 files"),
        "tiny": BUNDLED,
    }
    encoding: ClassVar = {"grey": GREY}
    Options = ImageOptions
    about = About(
        origin="CIFAR-10 (Krizhevsky 2009), in grey, pixel by pixel (Tay et al. 2021).",
        licence="None stated. The author asks for a citation of Krizhevsky 2009.",
        splits="45,000 / 5,000 / 10,000: train[:90%], train[90%:] and test in the order of "
        "TensorFlow Datasets, whatever the source.",
        problems=(
            "Grey is TensorFlow's to the last bit. That of Pillow and torchvision differs by one "
            "level in 29 % of the pixels.",
            "Many codes cut a random dev split instead of the last tenth of the official order.",
            "Public codes take id 0, a black pixel, for padding, in attention and in the mean. "
            "Here: protocol.data.mask=nonzero.",
            "The released code drops the last partial batch: 9,984 of 10,000 test images count.",
            "About 3 % of the test images have a near duplicate in train (Barz and Denzler 2020, "
            "arXiv:1902.00423). Exact duplicates are counted above.",
        ),
    )

    def splits(self, options: ImageOptions, job: Job) -> list[RawSplit]:
        if options.source == "tfds":
            job.inputs += tfds.prepare(DATASET, job.data_dir)
            train, test = (_stored(split, job.data_dir) for split in ("train", "test"))
        else:
            checksum = Checksum.any if options.source == "tiny" else options.checksum
            train, test = _published(self._place(options), checksum)
        n = len(train.labels)
        parts = train.take(percent(n, 0, 90)), train.take(percent(n, 90, 100)), test
        return [
            RawSplit(split, pictures.examples(self.grid[0]), len(pictures.labels))
            for split, pictures in zip(SPLITS, parts, strict=True)
        ]

    def decode(self, ids: np.ndarray) -> str:
        """Show a picture in characters, each the mean of two pixels: twice as high as wide."""
        rows, columns = self.grid
        levels = ids.reshape(rows // 2, 2, columns).mean(axis=1).astype(int) * len(SHADES) // 256
        return "\n".join("".join(SHADES[level] for level in row) for row in levels)

    def grey(self, picture: np.ndarray) -> np.ndarray:
        return grey(picture.reshape(1, -1, 3).swapaxes(1, 2))[0].reshape(picture.shape[:2])

    def provenance(self, options: ImageOptions) -> str:
        if options.source == "files" and options.checksum is Checksum.any:
            there = options.path and Path(options.path).expanduser().exists()
            note = cifar.read_note(self._place(options)) if there else None  # it may be gone by now
            return f"files in the format of CIFAR-10, not the published ones: {note or 'unknown'}"
        return super().provenance(options)

    def inputs(self, options: ImageOptions) -> list[Path]:
        return self._place(options).inputs()

    def needs_download(self, options: ImageOptions, data_dir: Path) -> bool:
        return options.source == "tfds" and not tfds.is_there(DATASET, data_dir)

    def width(self, options: ImageOptions, max_length: int) -> int:
        return self.max_length  # a picture is not cut

    def _place(self, options: ImageOptions) -> cifar.CifarFiles:
        if options.source == "tiny":
            return cifar.find_files(TINY / "image")
        names = " or ".join(version.archive for version in cifar.VERSIONS)
        what = f"the folder that holds {names}"
        return cifar.find_files(archives.user_path(options.path, "files", what))


class Image8(Image):
    name = "image8"
    title = "which of ten things a picture of 8 x 8 shows"
    probe = True
    max_length = 8 * 8
    grid = (8, 8)
    encoding: ClassVar = {**Image.encoding, "blocks": BLOCKS}
    about = Image.about._replace(
        origin="CIFAR-10 (Krizhevsky 2009), in grey, each pixel the mean of 4 x 4.",
        problems=("It is no task of the benchmark and no published value belongs to it.",
                  *Image.about.problems),
    )  # fmt: skip


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


@dataclass
class Pictures:
    levels: np.ndarray  # (N, 1024) uint8
    labels: np.ndarray  # (N,) uint8

    def take(self, index: slice | np.ndarray) -> Pictures:
        return Pictures(self.levels[index], self.labels[index])

    def examples(self, side: int) -> Iterator[Example]:
        for levels, label in zip(self.levels, self.labels.tolist(), strict=True):
            yield Example(shrunk(levels, side), label)


def _published(place: cifar.CifarFiles, checksum: Checksum) -> list[Pictures]:
    """Read train and test, each sorted by the running number of its pictures over its files."""
    batches = {
        name: Pictures(grey(batch.planes), batch.labels)
        for name, batch in cifar.read_batches(place, checksum)
    }
    splits = []
    for split, names in (("train", place.version.train), ("test", place.version.test)):
        pictures = _joined(batches[name] for name in names)
        splits.append(pictures.take(order(split, range(len(pictures.labels)))))
    return splits


def _stored(split: str, data_dir: Path) -> Pictures:
    return _joined(
        Pictures(
            grey(np.stack([r["image"].reshape(-1, 3).T for r in records])),
            np.array([r["label"] for r in records], np.uint8),
        )
        for records in tfds.read_records(DATASET, split, data_dir)
    )


def _joined(parts: Iterable[Pictures]) -> Pictures:
    levels, labels = zip(*((part.levels, part.labels) for part in parts), strict=True)
    return Pictures(np.concatenate(levels), np.concatenate(labels))
