"""Prepared data for people to look at: counts, examples as text, images as one picture."""

from __future__ import annotations

import functools
import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lra.base.config import UserError, printable
from lra.base.disk import disk_errors, write_atomically
from lra.data import registry
from lra.data.arrays import IGNORED, Prepared, Split

fill = functools.partial(textwrap.fill, width=100, break_long_words=False, break_on_hyphens=False)
GAP = 8  # pixels between pictures
GROUND = 96  # grey level between them
SMALLEST = 128  # width to which small pictures are enlarged


def as_text(prepared: Prepared, split: str, index: Sequence[int]) -> str:
    """Show examples with their text, the ids and the mask of their length, and the label."""
    part = _split_with(prepared, split, index)
    return "\n\n".join("\n".join(_lines(prepared, part, i)) for i in index)


def write_picture(prepared: Prepared, split: str, index: Sequence[int], file: Path) -> None:
    """Write images side by side as a PNG file, enlarged by a whole number."""
    if prepared.layout.grid is None:
        raise UserError(f"{prepared.layout.name} has no images: --png is for tasks that have")
    part = _split_with(prepared, split, index)
    rows, columns = prepared.layout.grid
    zoom, across = max(1, math.ceil(SMALLEST / columns)), math.ceil(math.sqrt(len(index)))
    cell = np.array([rows * zoom + GAP, columns * zoom + GAP])
    sheet = np.full(cell * [math.ceil(len(index) / across), across] + GAP, GROUND, np.uint8)
    for i, ids in enumerate(part.ids(np.asarray(index))):
        y, x = cell * divmod(i, across) + GAP
        picture = ids.reshape(rows, columns).repeat(zoom, 0).repeat(zoom, 1)
        sheet[y : y + rows * zoom, x : x + columns * zoom] = picture
    out = io.BytesIO()
    Image.fromarray(sheet).save(out, "PNG")
    with disk_errors(file.parent, "name another file"):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, out.getvalue())


def sizes(facts: dict[str, Any]) -> Iterator[str]:
    """Describe what was counted in prepared data, or the part of it that is known."""
    for name, split in facts.get("splits", {}).items():
        words = [f"{name:<5} {split['examples']:>7,} examples"]
        if lengths := split.get("lengths"):
            range_ = f"lengths {lengths['min']:,} to {lengths['max']:,}"
            words.append(f"{range_}, median {lengths['median']:,}")
        if labels := split.get("labels"):
            words.append(f"most frequent label {max(labels) / sum(labels):.1%}")
        if split.get("truncated"):
            words.append(f"{split['truncated']:,} cut to {lengths['max']:,}")
        if split.get("constant"):
            words.append(f"{split['constant']:,} of one colour")
        yield ", ".join(words)
    if repeated := facts.get("duplicates"):
        counts = ", ".join(f"{where} {count:,}" for where, count in repeated.items())
        yield f"examples that come again: {counts}"
    for reason, count in facts.get("notes", {}).items():
        yield f"{reason}: {count:,}"


def _split_with(prepared: Prepared, name: str, index: Sequence[int]) -> Split:
    split = prepared.split(name)
    if beyond := [i for i in index if not 0 <= i < len(split)]:
        raise UserError(
            f"{prepared.layout.name} has no {name} example {beyond[0]}: "
            f"they are numbered 0 to {len(split) - 1}"
        )
    return split


def _lines(prepared: Prepared, split: Split, i: int) -> Iterator[str]:
    layout, at = prepared.layout, np.array([i])
    lengths, label = split.lengths(at).ravel(), split.labels[i].tolist()
    if isinstance(label, list):
        label = ", ".join(f"{at}: {y}" for at, y in enumerate(label) if y != IGNORED)
    yield (
        f"{layout.name} {split.name} {i}   label {label}   "
        f"length {' and '.join(map(str, lengths))} of {split.width}"
    )
    task = registry.of_facts(prepared.facts)
    for ids, n in zip(split.ids(at).reshape(-1, split.width), lengths, strict=True):
        shown = {"ids": " ".join(map(str, ids[:n])), "mask": f"1 x {n}, 0 x {split.width - n}"}
        if layout.grid is None:
            shown = {"text": task.decode(ids[:n]), **shown}
        for name, text in shown.items():
            lines = fill(text, initial_indent=f"  {name:<5} ", subsequent_indent=" " * 8)
            yield from map(printable, lines.split("\n"))
