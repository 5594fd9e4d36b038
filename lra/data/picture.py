"""Pictures of `lra data show`: examples of a task side by side, as a PNG file."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lra.base.disk import disk_errors, write_atomically
from lra.base.errors import UserError
from lra.data.arrays import Split

GAP = 8  # pixels between pictures
GROUND = 96  # grey level between them
SMALLEST = 128  # width to which small pictures are enlarged


def write_picture(split: Split, index: Sequence[int], file: Path) -> None:
    """Write images side by side as a PNG file, small ones enlarged."""
    from PIL import Image

    if (grid := split.layout.grid) is None:
        raise UserError(f"{split.layout.name} has no images: --png is for tasks that have")
    across, zoom = math.ceil(math.sqrt(len(index))), math.ceil(SMALLEST / grid[1])
    pictures = split.ids(np.asarray(index)).reshape(-1, *grid)
    pictures = np.pad(pictures, ((0, -len(index) % across), (0, 0), (0, 0)), constant_values=GROUND)
    cells = pictures.repeat(zoom, 1).repeat(zoom, 2)
    cells = np.pad(cells, ((0, 0), (0, GAP), (0, GAP)), constant_values=GROUND)
    rows = (np.hstack(list(cells[at : at + across])) for at in range(0, len(cells), across))
    with disk_errors(file.parent, "name another file"):
        file.parent.mkdir(parents=True, exist_ok=True)
        out = io.BytesIO()
        Image.fromarray(np.vstack(list(rows))).save(out, "PNG")
        write_atomically(file, out.getvalue())
