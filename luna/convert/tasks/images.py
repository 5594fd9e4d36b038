"""Image classification on a folder tree in ImageNet's layout, `<folder>/{train,val}/<class>/*.jpg`.

Classes are the folders of train in sorted order. For ImageNet-1K that is the order of synsets,
which published checkpoints use. Decoding is lazy: threads prepare a batch (PIL releases the
interpreter lock) while one is used. An augmented image depends on (seed, epoch, its index), not on
threads or on the images before it.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from luna.base import LunaError
from luna.convert.host import transformers
from luna.convert.layers import shortened
from luna.convert.tasks import metrics
from luna.convert.tasks.base import (
    ConversionData,
    ConversionTask,
    Example,
    labels_of,
    split_into_batches,
)

FORMATS = ("JPEG", "PNG")  # others are never opened: Pillow would start Ghostscript for EPS
SUFFIXES = (".jpg", ".jpeg", ".png")
SPLITS = ("train", "val")
LAYOUT = "one folder per class in train and in val, images (jpg or png) in each"
THREADS = min(16, os.cpu_count() or 1)
# SHA-256 of the sorted names.
SYNSETS = "385e0240499426c022b773be1ae4da780f057b89c9694c7f47199f62746b6edd"
# Checkpoints on the hub name classes by words: these identify the first and the last synset.
FIRST, LAST = "tench", "toilet tissue"


class Images(ConversionData):
    """Paths of images and their classes; pixels are decoded batch by batch."""

    def train(self, epoch: int) -> ImageLoader:
        how = self.recipe.images
        key = (self.seed, epoch)
        height, width = image_size(self.processor)

        def pixels(i: int) -> Tensor:
            image = decode(self.task.root(self.folder) / self.examples[i][0])
            rng = np.random.default_rng((*key, 0, i))
            box = random_box(*image.size, how.min_area, rng)
            image = image.resize((width, height), self.processor.resample, box=box)
            if rng.random() < how.flip:
                image = ImageOps.mirror(image)
            return prepare(self.processor, image, do_resize=False, do_center_crop=False)

        order = np.random.default_rng((*key, 2)).permutation(len(self.examples)).tolist()
        parts = split_into_batches(order, self.recipe.batch)
        return ImageLoader(parts, pixels, labels_of(self.examples))

    def evaluation(self, split: str) -> ImageLoader:
        examples = self.scored[split]
        crop = self.recipe.images.eval_crop
        height, width = image_size(self.processor)
        changes: dict[str, Any] = {}
        if crop is not None:  # of the shorter side, in place of what the config says
            changes = {
                "size": {"shortest_edge": round(max(height, width) / crop)},
                "do_center_crop": True,
                "crop_size": {"height": height, "width": width},
            }

        def pixels(i: int) -> Tensor:
            return prepare(
                self.processor, decode(self.task.root(self.folder) / examples[i][0]), **changes
            )

        return ImageLoader(split_into_batches(range(len(examples)), self.recipe.batch), pixels)


@dataclass(frozen=True)
class ImageFolder(ConversionTask):
    name: str = "image_folder"

    metric = staticmethod(metrics.classified)
    data = Images
    auto_model = "AutoModelForImageClassification"
    files = "config.json, preprocessor_config.json and safetensors"

    def read(self, data: str | Path | None) -> tuple[list[Example], dict[str, list[Example]]]:
        train, val = (_files(self.root(data), split, self.classes(data)) for split in SPLITS)
        # Files are sorted by class, so a part of them has to be drawn: the same one in every run.
        drawn = torch.randperm(len(train), generator=torch.Generator().manual_seed(1)).tolist()
        return [train[i] for i in drawn], {"val": val}

    def processor(self, source: str, *, offline: bool = False) -> Any:
        kind = transformers().AutoImageProcessor
        how = {"backend": "pil", "local_files_only": offline, "trust_remote_code": False}
        return kind.from_pretrained(source, **how)

    def classes(self, data: str | Path | None) -> tuple[str, ...]:
        """List the folders of train; val may have no others."""
        root = self.root(data)
        train, val = (_folders(root / split) for split in SPLITS)
        unknown = sorted(set(val) - set(train))
        if unknown:
            raise LunaError(f"{root}/val has classes that are not in train: {shortened(unknown)}")
        return train

    def root(self, data: str | Path | None) -> Path:
        if data is None:
            raise LunaError(f"task '{self.name}' needs data.path=<folder> with {LAYOUT}")
        return Path(data)

    def fingerprint(self, data: str | Path | None) -> str:
        """Hash the names of all files: another folder is another data set."""
        root = self.root(data)
        classes = self.classes(data)
        paths = (path for split in SPLITS for path, _ in _files(root, split, classes))
        return hashlib.sha256("".join(f"{path}\n" for path in paths).encode()).hexdigest()


@dataclass(frozen=True)
class ImageNet(ImageFolder):
    name: str = "imagenet1k"

    def classes(self, data: str | Path | None) -> tuple[str, ...]:
        folders = super().classes(data)
        if hashlib.sha256("\n".join(folders).encode()).hexdigest() != SYNSETS:
            raise LunaError(
                f"{data}/train has {len(folders)} folders ({folders[0]} ... {folders[-1]}) instead "
                "of ImageNet-1K's 1000 synsets n01440764 ... n15075141: for a part of it, or other "
                "images, use task=image_folder"
            )
        return folders

    def check_head(self, names: Sequence[str], data: str | Path | None) -> None:
        if not (FIRST in names[0].lower() and LAST in names[-1].lower()):
            super().check_head(names, data)


TASKS = {task.name: task for task in (ImageFolder(), ImageNet())}


class ImageLoader:
    """Batches of images, made on demand; every pass over them gives the same ones."""

    def __init__(
        self,
        parts: Sequence[Sequence[int]],
        pixels: Callable[[int], Tensor],
        labels: Tensor | None = None,
    ):
        self.parts, self.pixels, self.labels = parts, pixels, labels

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        with ThreadPoolExecutor(THREADS) as pool:
            coming = pool.map(self.pixels, self.parts[0])
            for part, after in zip(self.parts, [*self.parts[1:], ()], strict=True):
                batch = {"pixel_values": torch.stack(list(coming))}
                coming = pool.map(self.pixels, after)  # while this one is used
                yield batch if self.labels is None else batch | {"labels": self.labels[part]}


def decode(path: Path) -> Image.Image:
    """Open an image in RGB; a LunaError names a file that is none."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise LunaError(f"{path} cannot be decoded ({error}): replace it or remove it") from error


def prepare(processor: Any, image: Image.Image, **changes: Any) -> Tensor:
    """Return the pixels (3, h, w) as the checkpoint wants them: resized, cropped, normalised."""
    return processor(image, return_tensors="pt", **changes)["pixel_values"][0]


def image_size(processor: Any) -> tuple[int, int]:
    """Return (height, width) of what `prepare` makes."""
    size = processor.crop_size if processor.do_center_crop else processor.size
    if not (size and size.get("height") and size.get("width")):
        raise LunaError(
            f"preprocessor_config.json leaves the image size open ({size}): ViT needs a height and "
            "a width"
        )
    return size["height"], size["width"]


def random_box(
    width: int, height: int, min_area: float, rng: np.random.Generator
) -> tuple[float, float, float, float]:
    """Draw a crop (left, top, right, bottom) of at least `min_area` of the image and of proportions
    from 3:4 to 4:3 (Szegedy et al. 2015, section 6)."""
    for _ in range(10):
        area = rng.uniform(min_area, 1.0) * width * height
        aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = math.sqrt(area * aspect), math.sqrt(area / aspect)
        if w <= width and h <= height:
            left, top = rng.uniform(0, width - w), rng.uniform(0, height - h)
            return left, top, left + w, top + h
    # The image is too long for such a crop: the largest central one with these proportions.
    w, h = min(width, height * 4 / 3), min(height, width * 4 / 3)
    left, top = (width - w) / 2, (height - h) / 2
    return left, top, left + w, top + h


def _folders(split: Path) -> tuple[str, ...]:
    if not split.is_dir():
        raise LunaError(f"the folder {split} is missing: {LAYOUT}")
    names = sorted(e.name for e in split.iterdir() if e.is_dir() and not e.name.startswith("."))
    if not names:
        raise LunaError(f"{split} contains no folders: {LAYOUT} (ImageNet's val comes without)")
    return tuple(names)


def _files(root: Path, split: str, classes: Sequence[str]) -> list[Example]:
    """List every image (its path below `root`) with the index of its class, sorted."""
    examples: list[Example] = []
    for label, name in enumerate(classes):
        folder = root / split / name
        if not folder.is_dir():
            continue
        names = sorted(f.name for f in folder.iterdir() if f.suffix.lower() in SUFFIXES)
        images = [(f"{split}/{name}/{f}", label) for f in names if not f.startswith(".")]
        if not images:
            raise LunaError(f"{folder} contains no images: {LAYOUT}")
        examples += images
    return examples
