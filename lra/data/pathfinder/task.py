"""Pathfinder: do two discs lie on the same dashed path? Two classes, at four sizes (Linsley et al.
2018, arXiv:1805.08315; Tay et al. 2021, 2.2.5 and 2.2.6).

The paper's Pathfinder is 32 x 32, its Path-X 128 x 128, both with contours of 14 dashes ("hard").
Ids are grey levels 0 to 255, row by row; black shares its id with padding, which images lack.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import ClassVar

import numpy as np

from lra.base.config import UserError
from lra.data.arrays import SPLITS, Example, Prepared, Split
from lra.data.parallel import track
from lra.data.pathfinder import files as tree
from lra.data.pathfinder import generator
from lra.data.pathfinder.sizes import Difficulty, PathfinderSettings, settings
from lra.data.sources import archives, release
from lra.data.sources.tfds_order import order as tfds_order
from lra.data.sources.tfds_order import percent
from lra.data.store import read_errors
from lra.data.task import BUNDLED, TINY, About, Job, RawSplit, Source, Task, TaskOptions, read_by

SHADES = " .:-=+*#%@"
CHARACTERS = 64  # width of a picture in characters


class Order(Enum):
    official = "official"  # of TensorFlow Datasets: train, val and test are its slices
    s4 = "s4"  # metadata files by number, then PyTorch's random_split with seed 42


@dataclass
class PathfinderOptions(TaskOptions):
    difficulty: Difficulty = Difficulty.hard
    order: Order = Order.official
    path: str | None = read_by("release", default=None, place=True)
    seed: int = read_by("generated", default=0, least=0)
    n: int = read_by("generated", default=200_000, least=10)
    distractors: int | None = read_by("generated", default=None, least=0)


class Pathfinder(Task):
    classes = 2
    vocab = 256
    sources: ClassVar = {
        "generated": Source(
            "re-generated, not the released images", {"generator": generator.VERSION}
        ),
        "release": Source("the official images, or images in their folders"),
        "tiny": BUNDLED,
    }
    Options = PathfinderOptions
    about = About(
        origin="Images are drawn by a program (Linsley et al. 2018; Tay et al. 2021). The released "
        "ones are one draw; source=generated draws them by the same rules.",
        licence="None stated for the released images. The program that drew them is MIT; "
        "generated ones are Apache-2.0, like this code.",
        splits="160,000 / 20,000 / 20,000 of the chosen difficulty: 80/10/10 % in the order of "
        "TensorFlow Datasets, or at random with seed 42 (order=s4).",
        problems=(
            "The original program's dilation has a fault at the border that narrows where the "
            "first path starts and points to. It shapes the images and is kept: without it 55 % "
            "of the pixels are black at 32 x 32 and not 65 %.",
            "At 32 x 32 distractors are brighter than the path, at the other sizes they are not.",
            "How many distractors easy and intermediate images have is not documented: an "
            "assumption, and an option.",
            "Public codes take id 0, a black pixel, for padding: most of every image. Here: "
            "protocol.data.mask=nonzero.",
            "Public codes split at random, without a seed or with seed 42; test sets of files made "
            "at two places overlap with train.",
            "The release holds two copies of pathfinder128. The inner one is read, as by public "
            "code; whether they differ is not known.",
            "One released image is empty (pathfinder32, easy); it is skipped after the split, and "
            "counted.",
        ),
    )

    def __init__(self, name: str, title: str, side: int) -> None:
        self.name, self.title, self.side = name, title, side
        self.max_length, self.grid = side * side, (side, side)

    def splits(self, options: PathfinderOptions, job: Job) -> list[RawSplit]:
        if options.source == "generated":
            return self._generated(options, job)
        path, kind = self._path(options), (self.side, options.difficulty)
        root = tree.find_images(
            release.root(path, tree.place_in_release(*kind), job.data_dir), *kind
        )
        if path.is_file():
            job.inputs += tree.metadata_files(root)
        rows = tree.read_metadata(root)
        if options.order is Order.s4:  # which leaves empty files out before it splits
            with read_errors(root / "imgs"):
                filled = [row for row in rows if (root / row.folder / row.file).stat().st_size]
            if len(filled) < len(rows):
                job.notes["empty image files skipped before the split"] = len(rows) - len(filled)
            rows = filled
        return [
            RawSplit(split, self._examples(root, [rows[i] for i in order], split, job), len(order))
            for split, order in divide(options, [row.key for row in rows]).items()
        ]

    def decode(self, ids: np.ndarray) -> str:
        """Show a picture in characters, each the brightest of its pixels: twice as high as wide."""
        across = -(-self.side // CHARACTERS)
        cells = ids.reshape(self.side // (2 * across), 2 * across, self.side // across, across)
        levels = cells.max(axis=(1, 3)).astype(int) * len(SHADES) // 256
        return "\n".join("".join(SHADES[level] for level in row) for row in levels)

    def inputs(self, options: PathfinderOptions) -> list[Path]:
        path = self._path(options)
        if path.is_file():
            return [path]
        return tree.metadata_files(tree.find_images(path, self.side, options.difficulty))

    def check_options(self, options: PathfinderOptions) -> None:
        if options.source == "tiny" and options.difficulty is not Difficulty.hard:
            raise UserError(
                f"source=tiny is hard; difficulty={options.difficulty.name} is not bundled"
            )

    def width(self, options: PathfinderOptions, max_length: int) -> int:
        return self.side * self.side  # a picture is not cut

    def audit(self, split: Split) -> Iterator[tuple[bool, str]]:
        index = split.sample()
        ids = split.ids(index)
        wrong = index[(ids.min(axis=1) != 0) | (ids.max(axis=1) != 255)]
        result = f"image {wrong[0]} does not" if len(wrong) else "all do"
        yield not len(wrong), f"{split.name}: {len(index):,} images reach from 0 to 255: {result}"

    def export(self, prepared: Prepared, folder: Path) -> list[Path]:
        """Write the official folders; read as source=release they give equal arrays."""
        if (source := prepared.facts["source"]) != "generated":
            raise UserError(f"source={source} is in the official folders already")
        facts = prepared.facts["options"]
        names = {"difficulty": Difficulty[facts["difficulty"]], "order": Order[facts["order"]]}
        options = PathfinderOptions(self.name, source, **(facts | names))
        root = folder / tree.place_in_release(self.side, options.difficulty)
        images = track(self._drawn(prepared, options), "writing", options.n)
        return tree.write_images(root, images, self._settings(options))

    def _drawn(
        self, prepared: Prepared, options: PathfinderOptions
    ) -> Iterator[tuple[np.ndarray, int, int]]:
        """Give (pixels, label, margin) of images 0, 1, ... of the series, from the arrays."""
        at = np.empty((options.n, 2), np.int64)  # (split, row) of each image
        for i, numbers in enumerate(divide(options, _keys(options.n)).values()):
            at[numbers] = np.stack([np.full(len(numbers), i), np.arange(len(numbers))], axis=1)
        for number, (i, row) in enumerate(at.tolist()):
            split = prepared.split(SPLITS[i])
            pixels = split.ids(np.array([row])).reshape(self.side, self.side)
            rng = generator.stream(options.seed, number)
            _, margin = generator.opening(rng, self._settings(options))
            yield pixels, int(split.labels[row]), margin

    def _generated(self, options: PathfinderOptions, job: Job) -> list[RawSplit]:
        """Draw one stream of images, in the order in which the splits want them."""
        numbers = divide(options, _keys(options.n))
        blocks = generator.generate(
            np.concatenate(list(numbers.values())),
            self._settings(options),
            seed=options.seed,
            workers=job.workers if options.n > generator.BLOCK else 1,
        )
        examples = (
            Example(image.reshape(-1), int(label))
            for block in blocks
            for image, label in zip(block.images, block.labels, strict=True)
        )
        sizes = {split: len(part) for split, part in numbers.items()}
        return [RawSplit(s, itertools.islice(examples, n), n) for s, n in sizes.items()]

    def _examples(
        self, root: Path, rows: list[tree.MetadataRow], split: str, job: Job
    ) -> Iterator[Example]:
        for row in rows:
            pixels = tree.read_image(root / row.folder / row.file, self.side)
            if pixels is None:  # after the split, like the official reader
                job.notes[f"{split}: empty image files skipped"] += 1
            else:
                yield Example(pixels, row.label)

    def _path(self, options: PathfinderOptions) -> Path:
        if options.source == "tiny":
            return TINY / f"pathfinder{self.side}"
        return archives.user_path(options.path, "release", release.WHAT)

    def _settings(self, options: PathfinderOptions) -> PathfinderSettings:
        return settings(self.side, options.difficulty, distractors=options.distractors)


PATHFINDERS = (
    Pathfinder("pathfinder", "are two discs on one path", 32),
    Pathfinder("pathfinder64", "Pathfinder at 64 x 64", 64),
    Pathfinder("pathx", "Path-X: Pathfinder at 128 x 128", 128),
    Pathfinder("pathfinder256", "Pathfinder at 256 x 256", 256),
)


def divide(options: PathfinderOptions, keys: Sequence[str]) -> dict[str, np.ndarray]:
    """Give the positions of each split's examples, 80/10/10, in stored order."""
    n = len(keys)
    if options.order is Order.s4:
        import torch

        order = torch.randperm(n, generator=torch.Generator().manual_seed(42)).numpy()
        tenth = int(0.1 * n)
        bounds = (n - 2 * tenth, n - tenth)
    else:
        order = tfds_order(options.difficulty.name, keys)
        bounds = (percent(n, 0, 80).stop, percent(n, 0, 90).stop)
    return dict(zip(SPLITS, np.split(order, bounds), strict=True))


def _keys(n: int) -> list[str]:
    return [tree.key(number) for number in range(n)]
