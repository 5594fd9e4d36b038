"""Pictures side by side, each under its caption, as one image."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

GAP = 8  # pixels between pictures
LINE = 14  # height of a caption
GROUND, INK = 96, 255  # grey levels of the ground and of the captions
SMALLEST = 128  # width to which small pictures are enlarged


def sheet(
    pictures: Sequence[np.ndarray], captions: Sequence[str], *, columns: int | None = None
) -> Image.Image:
    """Grey pictures (rows, columns) uint8, all of one size, enlarged by a whole number so that
    every pixel stays a square."""
    rows, width = pictures[0].shape
    zoom = max(1, math.ceil(SMALLEST / width))
    across = columns or math.ceil(math.sqrt(len(pictures)))
    down = math.ceil(len(pictures) / across)
    cell = width * zoom + GAP, rows * zoom + LINE + GAP  # (x, y)
    page = Image.new("L", (across * cell[0] + GAP, down * cell[1] + GAP), GROUND)
    draw, font = ImageDraw.Draw(page), ImageFont.load_default()
    for i, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        x, y = GAP + i % across * cell[0], GAP + i // across * cell[1]
        draw.text((x, y), caption, fill=INK, font=font)
        large = np.kron(picture, np.ones((zoom, zoom), np.uint8))
        page.paste(Image.fromarray(large), (x, y + LINE))
    return page
