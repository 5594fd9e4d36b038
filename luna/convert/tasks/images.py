"""Image classification on a folder tree in ImageNet's layout, `<folder>/{train,val}/<class>/*.jpg`.

Classes are the folders of train in sorted order. For ImageNet-1K that is the order of synsets,
which published checkpoints use.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import LunaError
from luna.convert.batches import ModelInputs, forward
from luna.convert.layers import shortened
from luna.convert.recipe import ConversionRecipe
from luna.convert.tasks import augment, metrics, pixels
from luna.convert.tasks.base import (
    ConversionData,
    ConversionTask,
    Example,
    labels_of,
    split_into_batches,
)
from luna.convert.tasks.pixels import ImageLoader, Pixels

SUFFIXES = (".jpg", ".jpeg", ".png")
SPLITS = ("train", "val")
LAYOUT = "one folder per class in train and in val, images (jpg or png) in each"
# SHA-256 of the sorted names.
SYNSETS = "385e0240499426c022b773be1ae4da780f057b89c9694c7f47199f62746b6edd"
# Checkpoints on the hub name classes by words: these identify the first and the last synset.
FIRST, LAST = "tench", "toilet tissue"


@dataclass(frozen=True)
class ImageFolder(ConversionTask):
    name: str = "image_folder"

    metric = staticmethod(metrics.classified)
    auto_model = "AutoModelForImageClassification"
    files = f"config.json, {pixels.CONFIG} and safetensors"

    def processor(self, source: str) -> Pixels:
        return Pixels.read(source)

    def classes(self, data: str | Path | None) -> tuple[str, ...]:
        """The folders of train; val may have no others."""
        root = self.root(data)
        train, val = (_folders(root / split) for split in SPLITS)
        unknown = sorted(set(val) - set(train))
        if unknown:
            raise LunaError(f"{root}/val has classes that are not in train: {shortened(unknown)}")
        if len(train) < 2:
            raise LunaError(f"{root}/train has a single class: {LAYOUT}")
        return train

    def root(self, data: str | Path | None) -> Path:
        if data is None:
            raise LunaError(f"task '{self.name}' needs data.path=<folder> with {LAYOUT}")
        return Path(data)

    def fingerprint(self, data: str | Path | None) -> str:
        """A hash of the names of all files: another folder is another data set."""
        root, classes = self.root(data), self.classes(data)
        paths = (path for split in SPLITS for path, _ in _files(root, split, classes))
        return hashlib.sha256("".join(f"{path}\n" for path in paths).encode()).hexdigest()

    def open(
        self, data: str | Path | None, processor: Any, recipe: ConversionRecipe, *, seed: int
    ) -> Images:
        return Images(self.root(data), self.classes(data), processor, recipe, seed)


@dataclass(frozen=True)
class ImageNet(ImageFolder):
    name: str = "imagenet1k"

    def classes(self, data: str | Path | None) -> tuple[str, ...]:
        folders = super().classes(data)
        if hashlib.sha256("\n".join(folders).encode()).hexdigest() != SYNSETS:
            odd = [f for f in folders if not (len(f) == 9 and f[0] == "n" and f[1:].isdigit())]
            which = f"{shortened(odd)}: not a synset" if odd else f"{folders[0]} ... {folders[-1]}"
            raise LunaError(
                f"{data}/train has {len(folders)} folders ({which}) instead of ImageNet-1K's 1000 "
                "synsets n01440764 ... n15075141: for a part of it, or other images, use "
                "task=image_folder"
            )
        return folders

    def check_head(self, names: Sequence[str], data: str | Path | None) -> None:
        if FIRST in names[0].lower() and LAST in names[-1].lower():
            return
        super().check_head(names, data)


TASKS = {task.name: task for task in (ImageFolder(), ImageNet())}


class Images(ConversionData):
    """Paths of images and their classes; pixels are decoded batch by batch."""

    def __init__(
        self,
        root: Path,
        classes: Sequence[str],
        processor: Pixels,
        recipe: ConversionRecipe,
        seed: int,
    ):
        train, val = (_files(root, split, classes) for split in SPLITS)
        # Files are sorted by class, so a part of them has to be drawn: the same one in every run.
        drawn = torch.randperm(len(train), generator=torch.Generator().manual_seed(1)).tolist()
        super().__init__([train[i] for i in drawn], {"val": val}, recipe, seed)
        self.n_classes, self.root, self.pixels = len(classes), root, processor

    def train(self, epoch: int) -> ImageLoader:
        how, size = self.recipe.images, (self.pixels.width, self.pixels.height)
        key = (self.seed, epoch)

        def image(i: int) -> np.ndarray:
            whole = pixels.decode(self.root / self.examples[i][0])
            rng = np.random.default_rng((*key, 0, i))
            return np.asarray(augment.augmented(whole, size, self.pixels.resample, how, rng))

        def batch(number: int, part: Sequence[int], images: list[np.ndarray]) -> dict[str, Tensor]:
            rng = np.random.default_rng((*key, 1, number))
            labels = labels_of([self.examples[i] for i in part])
            mixed = augment.mix(self.pixels.tensor(images), labels, self.n_classes, how, rng)
            return dict(zip(("pixel_values", "labels"), mixed, strict=True))

        order = np.random.default_rng((*key, 2)).permutation(len(self.examples)).tolist()
        return ImageLoader(split_into_batches(order, self.recipe.batch), image, batch)

    def evaluation(self, split: str) -> ImageLoader:
        examples, crop = self.scored[split], self.recipe.images.eval_crop

        def image(i: int) -> np.ndarray:
            whole = pixels.decode(self.root / examples[i][0])
            return np.asarray(self.pixels.fitted(whole, crop))

        def batch(number: int, part: Sequence[int], images: list[np.ndarray]) -> dict[str, Tensor]:
            return {"pixel_values": self.pixels.tensor(images)}

        return ImageLoader(
            split_into_batches(range(len(examples)), self.recipe.batch), image, batch
        )

    def loss(self, model: nn.Module, batch: ModelInputs) -> Tensor:
        """Cross-entropy, to classes or to mixtures of them."""
        assert not isinstance(batch, Tensor)
        logits = forward(model, batch).logits.float()
        labels = batch["labels"].to(logits.device)
        return F.cross_entropy(logits, labels, label_smoothing=self.recipe.images.label_smoothing)

    def check(self, model: nn.Module) -> None:
        size: Any = model.config.image_size  # type: ignore[union-attr]
        height, width = (size, size) if isinstance(size, int) else size
        if (height, width) != (self.pixels.height, self.pixels.width):
            raise LunaError(
                f"the checkpoint's {pixels.CONFIG} gives images of {self.pixels.height} x "
                f"{self.pixels.width}, its model takes {height} x {width}"
            )


def _folders(split: Path) -> tuple[str, ...]:
    if not split.is_dir():
        raise LunaError(f"the folder {split} is missing: {LAYOUT}")
    with os.scandir(split) as entries:
        names = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    if not names:
        raise LunaError(
            f"{split} contains no folders: {LAYOUT} (ImageNet's val comes without folders: sort it "
            "by its ground truth)"
        )
    return tuple(names)


def _files(root: Path, split: str, classes: Sequence[str]) -> list[Example]:
    """Every image (its path below `root`) with the index of its class, sorted."""
    examples: list[Example] = []
    for label, name in enumerate(classes):
        folder = root / split / name
        if not folder.is_dir():
            continue
        with os.scandir(folder) as entries:
            names = sorted(e.name for e in entries if e.name.lower().endswith(SUFFIXES))
        images = [(f"{split}/{name}/{f}", label) for f in names if not f.startswith(".")]
        if not images:
            raise LunaError(f"{folder} contains no images: {LAYOUT}")
        examples += images
    return examples
