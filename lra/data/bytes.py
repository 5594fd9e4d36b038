"""Bytes: the next byte of a text, for any text file or folder of files.

An example is a window of `context` bytes; the label of each is the byte behind it. In training the
windows lie side by side. On dev and test they start every `stride` bytes and only what no earlier
window has scored counts, so that every byte is scored once, after context - stride bytes or more
(the first window's excepted). The text is cut into train, dev and test in this order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lra.base.errors import UserError
from lra.data.arrays import IGNORED, SPLITS, Example
from lra.data.task import BUNDLED, ByteTask, Job, RawSplit, Source, TaskOptions, byte_ids, read_by
from lra.data.text import read_reviews

MOST = 2**31  # bytes of a text, which is held in memory


@dataclass
class BytesOptions(TaskOptions):
    path: str | None = read_by("files", default=None, place=True)
    context: int = read_by("files", "tiny", default=256, least=2)
    stride: int = read_by("files", "tiny", default=128, least=1)
    held_out: float = read_by("files", "tiny", default=0.05, least=0)  # for dev, and for test


class Bytes(ByteTask):
    name = "bytes"
    title = "the next byte of a text of one's own"
    probe = True
    classes = ByteTask.vocab  # the class of a byte is its id
    max_length = 256
    per_token: ClassVar = True
    causal = True
    metrics: ClassVar = ("bits_per_byte", "perplexity", "accuracy")
    miniature = "text"
    sources: ClassVar = {"files": Source("a text of one's own", {"windows": "1"}), "tiny": BUNDLED}
    Options = BytesOptions

    def width(self, options: BytesOptions, max_length: int) -> int:
        return options.context

    def check_options(self, options: BytesOptions) -> None:
        if options.stride > options.context:
            raise UserError(
                f"task.stride={options.stride} is more than task.context={options.context}: bytes "
                "between two windows would never be scored"
            )
        if not 0 < options.held_out < 0.5:
            raise UserError(
                f"task.held_out={options.held_out} is out of range: it must be between 0 and 0.5"
            )

    def versions(self, options: TaskOptions) -> dict[str, str]:
        """With a hash of the text, so that another text at the same options is other data."""
        digest = hashlib.sha256(self.text(options)).hexdigest()[:16]
        return super().versions(options) | {"text": digest}

    def inputs(self, options: Any) -> list[Path]:
        return self._files(options)

    def text(self, options: Any) -> bytes:
        """Read the text: the files of a folder by their names, with a line break between them."""
        if options.source == "tiny":
            archive = self.place(options, "") / "aclImdb_v1.tar.gz"
            reviews = (r for part in read_reviews(archive).values() for r in part)
            return b"\n".join(r.text for r in sorted(reviews, key=lambda r: r.key))
        files = self._files(options)
        if (size := sum(file.stat().st_size for file in files)) > MOST:
            raise UserError(f"{options.path} has {size:,} bytes, more than {MOST:,}: give a part")
        return b"\n".join(file.read_bytes() for file in files)

    def _files(self, options: Any) -> list[Path]:
        place = self.place(options, "a text file, or a folder of them")
        if place.is_file() or options.source == "tiny":
            return [place] if place.is_file() else []
        files = sorted(p for p in place.rglob("*") if p.is_file() and not p.name.startswith("."))
        if not files:
            raise UserError(f"{place} holds no files: give a text file, or a folder of them")
        return files

    def splits(self, options: BytesOptions, job: Job) -> list[RawSplit]:
        ids = byte_ids(self.text(options))
        held = int(options.held_out * len(ids))
        ends = len(ids) - 2 * held, len(ids) - held
        if held <= options.context:
            raise UserError(
                f"the text has {len(ids):,} bytes, of which {held:,} are held out for dev and as "
                f"many for test: that is not longer than a context of {options.context}, so give a "
                "longer text, lower task.context or raise task.held_out"
            )
        strides = options.context, options.stride, options.stride
        return [
            RawSplit(name, self.windows(part, options.context, stride), None)
            for name, part, stride in zip(SPLITS, np.split(ids, ends), strides, strict=True)
        ]

    def windows(self, ids: np.ndarray, context: int, stride: int) -> Iterator[Example]:
        """Cut a part into windows; the last one ends where the part does."""
        last = len(ids) - 1  # bytes that have one behind them
        scored = 0  # of these, by the windows so far
        for start in range(0, last, stride):
            start = min(start, last - context)
            labels = ids[start + 1 : start + 1 + context].astype(np.int16)
            labels[: scored - start] = IGNORED
            yield Example(ids[start : start + context], labels)
            scored = start + context
            if scored == last:
                return
