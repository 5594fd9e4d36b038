"""Augmentation of training images: random resized crops and flips, and the paper's options
RandAugment, Mixup and CutMix. The numbers come from the recipe.

Every function draws only from the generator that it is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from numpy.random import Generator
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from luna.convert.recipe import Augment

GREY = (128, 128, 128)


def augmented(
    image: Image.Image, size: tuple[int, int], resample: int, how: Augment, rng: Generator
) -> Image.Image:
    """An RGB image of `size` (width, height), cropped, flipped and changed at random."""
    box = random_box(*image.size, how.min_area, rng)
    image = image.resize(size, resample, box=box)  # type: ignore[arg-type]
    if rng.random() < how.flip:
        image = ImageOps.mirror(image)
    for _ in range(how.randaugment):
        operation = OPERATIONS[rng.integers(len(OPERATIONS))]
        image = operation(image, how.magnitude / 30, 1 if rng.random() < 0.5 else -1)
    return image


def random_box(
    width: int, height: int, min_area: float, rng: Generator
) -> tuple[float, float, float, float]:
    """A crop (left, top, right, bottom) of at least `min_area` of the image and of proportions from
    3:4 to 4:3 (Szegedy et al. 2015, section 6)."""
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


# ---------------------------------------------------------------------- RandAugment

# (image, strength in [0, 1], sign): the operations of Cubuk et al. 2020 (arXiv 1909.13719) at the
# strengths of its table, where half of the symmetric ones go the other way.
Operation = Callable[[Image.Image, float, int], Image.Image]


def _enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    return lambda image, m, sign: kind(image).enhance(1 + 0.9 * m * sign)


def _affine(matrix: Callable[[float], tuple[float, ...]]) -> Operation:
    def apply(image: Image.Image, m: float, sign: int) -> Image.Image:
        a, b, c, d, e, f = matrix(m * sign)
        shifted = (a, b, c * image.width, d, e, f * image.height)
        bilinear, affine = Image.Resampling.BILINEAR, Image.Transform.AFFINE
        return image.transform(image.size, affine, shifted, bilinear, fillcolor=GREY)

    return apply


OPERATIONS: tuple[Operation, ...] = (
    lambda image, m, sign: image,
    lambda image, m, sign: ImageOps.autocontrast(image),
    lambda image, m, sign: ImageOps.equalize(image),
    lambda image, m, sign: ImageOps.posterize(image, 8 - round(4 * m)),
    lambda image, m, sign: ImageOps.solarize(image, round(256 * (1 - m))),
    lambda image, m, sign: image.rotate(30 * m * sign, Image.Resampling.BILINEAR, fillcolor=GREY),
    _enhance(ImageEnhance.Color),
    _enhance(ImageEnhance.Contrast),
    _enhance(ImageEnhance.Brightness),
    _enhance(ImageEnhance.Sharpness),
    _affine(lambda s: (1, 0.3 * s, 0, 0, 1, 0)),  # shear
    _affine(lambda s: (1, 0, 0, 0.3 * s, 1, 0)),
    _affine(lambda s: (1, 0, 0.45 * s, 0, 1, 0)),  # translate
    _affine(lambda s: (1, 0, 0, 0, 1, 0.45 * s)),
)


# ---------------------------------------------------------------------- Mixup and CutMix


def mix(
    pixels: Tensor, labels: Tensor, n_classes: int, how: Augment, rng: Generator
) -> tuple[Tensor, Tensor]:
    """Mixup (arXiv 1710.09412) or CutMix (arXiv 1905.04899), with equal chances where both are on.
    Images (B, 3, h, w) are paired within the batch; labels become distributions (B, n_classes)."""
    kinds = [k for k, alpha in ((_blend, how.mixup), (_paste, how.cutmix)) if alpha]
    if not kinds:
        return pixels, labels
    kind = kinds[rng.integers(len(kinds))]
    alpha = how.mixup if kind is _blend else how.cutmix
    partner = torch.from_numpy(rng.permutation(len(pixels)))
    pixels, keep = kind(pixels, pixels[partner], rng.beta(alpha, alpha), rng)
    targets = F.one_hot(labels, n_classes).float()
    return pixels, keep * targets + (1 - keep) * targets[partner]


def _blend(a: Tensor, b: Tensor, keep: float, rng: Generator) -> tuple[Tensor, float]:
    return keep * a + (1 - keep) * b, keep


def _paste(a: Tensor, b: Tensor, keep: float, rng: Generator) -> tuple[Tensor, float]:
    """Replace a box of about 1 - keep of the area by b; also returns the exact part of `a` left."""
    height, width = a.shape[-2:]
    half_h, half_w = (round(side * math.sqrt(1 - keep) / 2) for side in (height, width))
    y, x = int(rng.integers(height)), int(rng.integers(width))
    rows = slice(max(0, y - half_h), min(height, y + half_h))
    columns = slice(max(0, x - half_w), min(width, x + half_w))
    out = a.clone()
    out[..., rows, columns] = b[..., rows, columns]
    gone = (rows.stop - rows.start) * (columns.stop - columns.start)
    return out, 1 - gone / (height * width)
