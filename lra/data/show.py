"""Prepared examples for people to look at: text, ids, mask, label; images as one picture."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from lra.base.config import UserError
from lra.base.disk import disk_errors, write_atomically
from lra.data import registry
from lra.data.arrays import IGNORED, Prepared

WIDTH = 100  # columns of a line
GAP = 8  # pixels between pictures
LINE = 14  # height of a caption
GROUND, INK = 96, 255  # grey levels of the ground and of the captions
SMALLEST = 128  # width to which small pictures are enlarged


def examples(
    prepared: Prepared, split: str, index: Sequence[int], *, nonzero: bool = False
) -> list[dict[str, Any]]:
    """Read examples as plain values. The mask is that of the true length, or of the ids that are
    not 0."""
    part = prepared.split(split)
    beyond = [i for i in index if not 0 <= i < len(part)]
    if beyond:
        raise UserError(
            f"{prepared.layout.name} has no {split} example {beyond[0]}: "
            f"they are numbered 0 to {len(part) - 1}"
        )
    at = np.asarray(index, np.int64)
    shown = []
    for i, ids, lengths in zip(index, part.ids(at), part.lengths(at), strict=True):
        sides = [
            _sequence(prepared, *side, nonzero)
            for side in zip(np.atleast_2d(ids), np.atleast_1d(lengths), strict=True)
        ]
        facts = {"split": split, "index": int(i), "label": part.labels[i].tolist()}
        shown.append(facts | ({"pair": sides} if prepared.layout.dual else sides[0]))
    return shown


def as_text(prepared: Prepared, example: dict[str, Any]) -> str:
    sides = example.get("pair", [example])
    lengths = " and ".join(str(side["length"]) for side in sides)
    each = prepared.layout.per_token
    lines = [
        f"{prepared.layout.name} {example['split']} {example['index']}"
        f"   label {'per token' if each else example['label']}"
        f"   length {lengths} of {prepared.facts['width']}"
    ]
    if each:
        scored = (f"{at}: {y}" for at, y in enumerate(example["label"]) if y != IGNORED)
        lines += _hang("label", ", ".join(scored), WIDTH - 8)
    width = None if prepared.layout.grid else WIDTH - 8  # a picture keeps its lines
    for side in sides:
        mask = ", ".join(f"{bit} x {len(list(run))}" for bit, run in groupby(side["mask"]))
        ids = " ".join(map(str, side["ids"][: side["length"]]))
        lines += _hang("text", side["text"], width)
        lines += _hang("ids", ids, WIDTH - 8) + _hang("mask", mask, WIDTH - 8)
    return "\n".join(lines)


def write_picture(prepared: Prepared, split: str, index: Sequence[int], file: Path) -> None:
    """Write images side by side, each under its number and label, as a PNG file."""
    grid = prepared.layout.grid
    if grid is None:
        raise UserError(f"{prepared.layout.name} has no images: --png is for tasks that have")
    shown = examples(prepared, split, index)
    page = sheet(
        [np.array(example["ids"], np.uint8).reshape(grid) for example in shown],
        [f"{example['index']}: label {example['label']}" for example in shown],
    )
    out = io.BytesIO()
    page.save(out, "PNG")
    with disk_errors(file.parent, "name another file"):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, out.getvalue())


def sheet(pictures: Sequence[np.ndarray], captions: Sequence[str]) -> Image.Image:
    """Arrange grey pictures (rows, columns) uint8, all of one size, enlarged by a whole number so
    that every pixel stays a square."""
    rows, width = pictures[0].shape
    zoom = max(1, math.ceil(SMALLEST / width))
    across = math.ceil(math.sqrt(len(pictures)))
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


def _sequence(prepared: Prepared, ids: np.ndarray, length: int, nonzero: bool) -> dict[str, Any]:
    mask = ids != 0 if nonzero else np.arange(len(ids)) < length
    return {
        "length": int(length),
        "text": registry.of_facts(prepared.facts).decode(ids[:length]),
        "ids": ids.tolist(),
        "mask": mask.astype(int).tolist(),
    }


def _hang(name: str, value: str, width: int | None) -> list[str]:
    lines = value.split("\n")
    if width is not None:
        lines = [part for line in lines for part in textwrap.wrap(line, width) or [""]]
    return [f"  {name if i == 0 else '':<5} {line}".rstrip() for i, line in enumerate(lines)]
