"""PNG files of few colours, the same for the same figure."""

from __future__ import annotations

import io
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from lra.figures.schemes import colours_of

KEPT = 192  # colours of a palette that are kept exact, at most


def write_png(figure: Any, path: Path, dpi: int, letters: float) -> None:
    """A PNG of 256 colours, a third of the size of one of all. It says how large its letters are on
    a phone."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    pixels = io.BytesIO()
    figure.savefig(pixels, format="png", dpi=dpi, facecolor=figure.get_facecolor())
    said = PngInfo()
    said.add_text("letters", f"{letters:.1f}")
    with Image.open(pixels) as image:
        few = of_few_colours(image.convert("RGB"), colours_of(figure))
    few.save(path, optimize=True, pnginfo=said)


def of_few_colours(image: Any, kept: Collection[str]) -> Any:
    """The image with a palette. Pillow's own choice of colours would give methods that are drawn
    small the colours of others: those of `kept` stay, and it chooses the rest."""
    from PIL import Image

    pixels = np.asarray(image, dtype=np.int32) @ np.array([2**16, 2**8, 1], dtype=np.int32)
    there, places, counts = np.unique(pixels, return_inverse=True, return_counts=True)
    wanted = np.isin(there, [int(colour[1:], 16) for colour in kept])
    most = np.flatnonzero(wanted)[np.argsort(-counts[wanted], kind="stable")][:KEPT]
    rest = image.quantize(256 - len(most), dither=Image.Dither.NONE).getpalette()
    as_rgb = there[:, None] >> np.array([16, 8, 0]) & 255
    palette = np.concatenate([as_rgb[most], np.reshape(rest, (-1, 3))]).astype(np.int32)
    nearest = [np.square(palette - colour).sum(1).argmin() for colour in as_rgb]
    few = Image.fromarray(np.array(nearest, dtype=np.uint8)[places].reshape(pixels.shape), "P")
    few.putpalette(palette.astype(np.uint8).tobytes())
    return few
