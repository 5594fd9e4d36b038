"""Images as a checkpoint wants them: decoded, resized, normalised, in batches.

Decoding is lazy: threads prepare a few batches (PIL releases the interpreter lock) while one is
used, and memory does not grow with the number of images. An augmented image depends on (seed,
epoch, its index), not on threads or on the images before it.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from luna.base import LunaError
from luna.convert.host import transformers

CONFIG = "preprocessor_config.json"
FORMATS = ("JPEG", "PNG")  # others are never opened: Pillow would start Ghostscript for EPS
AHEAD = 2  # batches prepared while one is used
THREADS = min(16, os.cpu_count() or 1)


@dataclass(frozen=True)
class Pixels:
    """A checkpoint's image size and normalisation, from its preprocessor_config.json."""

    config: Mapping[str, Any]
    width: int
    height: int
    resize: tuple[int, int] | int | None  # (width, height), or the shorter side, before the crop
    resample: int
    scale: Tensor  # (3, 1, 1): pixel values from 0 to 255 times scale, plus shift
    shift: Tensor

    @classmethod
    def read(cls, source: str) -> Pixels:
        """Read it from a local folder or the hub."""
        config, _ = transformers().BaseImageProcessor.get_image_processor_dict(source)
        resize = _size(config.get("size", 224)) if config.get("do_resize", True) else None
        crop = _size(config.get("crop_size", 224)) if config.get("do_center_crop") else resize
        if not isinstance(crop, tuple):
            raise LunaError(
                f"{CONFIG} of '{source}' leaves the image size open (size {config.get('size')}, "
                f"crop_size {config.get('crop_size')}): ViT needs a height and a width"
            )
        factor = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
        normal = config.get("do_normalize", True)
        mean, std = (
            torch.tensor(config.get(key, [0.5] * 3) if normal else [plain] * 3).view(3, 1, 1)
            for key, plain in (("image_mean", 0.0), ("image_std", 1.0))
        )
        resample = int(config.get("resample", Image.Resampling.BILINEAR))
        return cls(config, *crop, resize, resample, factor / std, -mean / std)

    def save_pretrained(self, folder: str | Path) -> None:
        text = json.dumps(dict(self.config), indent=2) + "\n"
        (Path(folder) / CONFIG).write_text(text, encoding="utf-8")

    def fitted(self, image: Image.Image, crop: float | None = None) -> Image.Image:
        """The image for an evaluation: resized and cropped in the middle as the checkpoint's config
        says, or to `crop` of the shorter side."""
        side = self.resize if crop is None else round(max(self.width, self.height) / crop)
        if isinstance(side, int):
            long = side * max(image.size) // min(image.size)
            side = (side, long) if image.width <= image.height else (long, side)
        if side is not None:
            image = image.resize(side, self.resample)  # type: ignore[arg-type]
        left, top = (image.width - self.width) // 2, (image.height - self.height) // 2
        return image.crop((left, top, left + self.width, top + self.height))

    def tensor(self, images: Sequence[np.ndarray]) -> Tensor:
        """uint8 (h, w, 3) each -> (B, 3, h, w), normalised."""
        stacked = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
        return torch.addcmul(self.shift, stacked.float(), self.scale)


def _size(size: Any) -> tuple[int, int] | int:
    """(width, height), or the shorter side."""
    if isinstance(size, Mapping) and "height" in size:
        return int(size["width"]), int(size["height"])
    if isinstance(size, Mapping) and "shortest_edge" in size:
        return int(size["shortest_edge"])
    if isinstance(size, int):  # a square, in files of the first versions
        return size, size
    raise LunaError(
        f"{CONFIG} has the size {size}, which is not supported: give height and width, or "
        "shortest_edge"
    )


def decode(path: Path) -> Image.Image:
    """The image in RGB; a LunaError that names a file which is not an image."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = str(error).strip().rstrip(".") or type(error).__name__
        raise LunaError(f"{path} cannot be decoded ({reason}): replace it or remove it") from error


class ImageLoader:
    """Batches of images, made on demand; every pass over them gives the same ones."""

    def __init__(
        self,
        parts: Sequence[Sequence[int]],
        image: Callable[[int], np.ndarray],
        batch: Callable[[int, Sequence[int], list[np.ndarray]], Mapping[str, Tensor]],
    ):
        self.parts, self.image, self.batch = parts, image, batch

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Mapping[str, Tensor]]:
        working: deque[list[Future[np.ndarray]]] = deque()
        with ThreadPoolExecutor(THREADS) as pool:
            try:
                for number in range(len(self.parts)):
                    for part in self.parts[number + len(working) : number + 1 + AHEAD]:
                        working.append([pool.submit(self.image, i) for i in part])
                    images = [each.result() for each in working.popleft()]
                    yield self.batch(number, self.parts[number], images)
            finally:
                for each in [future for futures in working for future in futures]:
                    each.cancel()
