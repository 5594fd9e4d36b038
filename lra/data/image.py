"""Image: which of ten things does a 32 x 32 picture show? (CIFAR-10 in grey, pixel by pixel;
Krizhevsky 2009; Tay et al. 2021, 2.2.4).

Ids are grey levels 0 to 255, row by row; black shares its id with padding, of which there is none.
Train, val and test are TensorFlow Datasets' train[:90%], train[90%:] and test, in its order,
whatever the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lra.config import UserError
from lra.data import cifar, tfds
from lra.data.archives import Checksum
from lra.data.order import order, percent
from lra.data.task import Example, Job, Part, Task, TaskOptions, read_by

TINY = Path(__file__).parent / "tiny" / "image"
DATASET = tfds.Dataset("cifar10", "3.0.2", archive=cifar.BINARY.archive)
GREY = "grey-v1"  # change it when the same colours give other levels
SIDE = 32
SHADES = " .:-=+*#%@"


@dataclass
class ImageOptions(TaskOptions):
    path: str | None = read_by("files", place=True)
    checksum: Checksum = read_by("files")  # noqa: RUF009


class Pictures(NamedTuple := tuple):
    ...
