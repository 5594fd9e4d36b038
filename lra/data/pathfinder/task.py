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
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from lra.data.arrays import SPLITS, Example, Scale
from lra.data.pathfinder import files as tree
from lra.data.pathfinder import generator
from lra.data.pathfinder.sizes import Difficulty, settings
from lra.data.sources import release
from lra.data.sources.tfds import order as tfds_order
from lra.data.sources.tfds import percent
from lra.data.store import read_errors
from lra.data.task import BUNDLED, Job, RawSplit, Source, Task, TaskOptions, read_by


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
    scale = Scale((127.5,), (127.5,))  # to -1 ... 1: s4 e757cef, src/dataloaders/lra.py
    sources: ClassVar = {
        "generated": Source(
            "re-generated, not the released images", {"generator": generator.VERSION}
        ),
        "release": Source("the official images, or images in their folders"),
        "tiny": BUNDLED,
    }
    Options = PathfinderOptions

    def __init__(self, name: str, title: str, side: int) -> None:
        self.name, self.title, self.side = name, title, side
        self.max_length, self.grid = side * side, (side, side)
        self.miniature = f"pathfinder{side}"

    def splits(self, options: PathfinderOptions, job: Job) -> list[RawSplit]:
        if options.source == "generated":
            return self._generated(options, job)
        path, kind = self.place(options, release.WHAT), (self.side, options.difficulty)
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

    def inputs(self, options: PathfinderOptions) -> list[Path]:
        path = self.place(options, release.WHAT)
        if path.is_file():
            return [path]
        return tree.metadata_files(tree.find_images(path, self.side, options.difficulty))

    def width(self, options: PathfinderOptions, max_length: int) -> int:
        return self.side * self.side  # a picture is not cut

    def _generated(self, options: PathfinderOptions, job: Job) -> list[RawSplit]:
        """Draw one stream of images, in the order in which the splits want them."""
        numbers = divide(options, [tree.key(number) for number in range(options.n)])
        examples = generator.generate(
            np.concatenate(list(numbers.values())),
            settings(self.side, options.difficulty, distractors=options.distractors),
            seed=options.seed,
            workers=job.workers if options.n > generator.BLOCK else 1,
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


Pathfinder32 = partial(Pathfinder, "pathfinder", "are two discs on one path", 32)
Pathfinder64 = partial(Pathfinder, "pathfinder64", "Pathfinder at 64 x 64", 64)
PathX = partial(Pathfinder, "pathx", "Path-X: Pathfinder at 128 x 128", 128)
Pathfinder256 = partial(Pathfinder, "pathfinder256", "Pathfinder at 256 x 256", 256)


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
