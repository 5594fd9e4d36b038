"""Examples written as arrays, one by one, and refused where a task cannot have them."""

from __future__ import annotations

import contextlib
import hashlib
import math
from pathlib import Path
from typing import Any, Self

import numpy as np

from lra.base.errors import UserError
from lra.data.arrays import IGNORED, IN_WORDS, SPLITS, Example, Layout
from lra.data.store import sha256
from lra.data.task import numbers_of

CHUNK = 2**22  # bytes of an array that wait in memory


class Writer:
    def __init__(self, folder: Path, layout: Layout, width: int):
        most = 2**15 if layout.per_token else 2**8  # larger labels would wrap around
        if layout.asks == "classes" and layout.classes > most:
            raise UserError(
                f"{layout.name} has more than {most:,} classes, the most that are stored: join "
                "rare classes into one"
            )
        if layout.vocab > 2**16:
            raise UserError(f"{layout.name} has more than 65,536 different ids")
        self.folder, self.layout, self.width = folder, layout, width
        self.truncated = dict.fromkeys(SPLITS, 0)
        self._dtype = np.dtype(np.uint8 if layout.vocab <= 256 else np.uint16)
        if layout.channels:
            self._dtype = np.dtype(np.float32)
        self._files: dict[str, ArrayFile] = {}
        self._texts: dict[bytes, int] = {}  # of a dual task: digest -> row

    def add(self, split: str, example: Example) -> None:
        ids, label = example
        row = self._label(split, np.asarray(label))
        if self.layout.dual:
            rows = [self._text(split, np.asarray(side)) for side in ids]
            self._file(f"{split}.pairs", (2,), np.uint32).append(np.asarray(rows))
        else:
            self._sequence(split, split, np.asarray(ids))
        self._file(f"{split}.labels", row.shape, row.dtype).append(row)

    def close(self) -> dict[str, dict[str, Any]]:
        facts = {name: file.close() for name, file in sorted(self._files.items())}
        if empty := [s for s in SPLITS if f"{s}.labels" not in facts]:
            raise UserError(
                f"{self.layout.name} has no examples for {' and '.join(IN_WORDS[s] for s in empty)}"
            )
        return facts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):  # of a full disk, which has been reported
                file.file.close()

    def _label(self, split: str, label: np.ndarray) -> np.ndarray:
        """Check a label; give what is stored of it."""
        named = IN_WORDS[split]
        shape, stored = self.layout.label_form(self.width)
        if label.dtype.kind not in "biuf":
            raise UserError(f"an example of {named} has label {label}, which is no number")
        if self.layout.per_token:
            labels = np.atleast_1d(label)
            self._check_range(split, "label", labels[labels != IGNORED], self.layout.classes)
            row = np.full(shape, IGNORED, stored)
            row[: len(labels)] = labels[: len(row)]
            if (row == IGNORED).all():  # the loss of a batch of such examples is nan
                raise UserError(f"an example of {named} has no scored label: leave it out")
            return row
        if label.size != math.prod(shape):
            raise UserError(
                f"an example of {named} has {label.size} targets; {self.layout.name} asks for "
                f"{math.prod(shape)}"
            )
        if self.layout.asks != "numbers":
            end = 2 if self.layout.asks == "labels" else self.layout.classes
            self._check_range(split, "label", label, end)
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            row = label.astype(stored).reshape(shape)
        if not np.isfinite(row).all():
            raise UserError(
                f"an example of {named} has the target {label[~np.isfinite(row)][0]}, which is no "
                "finite number of 32 bits: leave it out, or scale the targets"
            )
        return row

    def _text(self, split: str, ids: np.ndarray) -> int:
        start = np.ascontiguousarray(ids[: self.width], self._dtype)
        digest = hashlib.blake2b(start.tobytes(), digest_size=16).digest()
        if digest not in self._texts:
            self._texts[digest] = len(self._texts)
            self._sequence(split, "texts", ids)
        elif len(ids) > self.width:
            self.truncated[split] += 1
        return self._texts[digest]

    def _sequence(self, split: str, store: str, ids: np.ndarray) -> None:
        named = IN_WORDS[split]
        if self.layout.grid is not None and len(ids) != self.width:
            raise UserError(
                f"an image of {named} has {len(ids)} pixels; {self.layout.name} has {self.width}"
            )
        if len(ids) > self.width:
            self.truncated[split] += 1
            ids = ids[: self.width]
        if self.layout.channels:
            ids = numbers_of(ids, self.layout.channels, f"an example of {named}")
        else:
            self._check_range(split, "id", ids, self.layout.vocab)
        stored = (self.width * self.layout.per_place,)
        self._file(f"{store}.ids", stored, self._dtype).append(ids.ravel())
        self._file(f"{store}.lengths", (), np.uint32).append(len(ids))

    def _check_range(self, split: str, what: str, values: np.ndarray, end: int) -> None:
        named = IN_WORDS[split]
        wrong = (values < 0) | (values >= end)
        if values.dtype.kind not in "iu":
            wrong |= values % 1 != 0
        if wrong.any():
            raise UserError(
                f"an example of {named} has {what} {values[wrong][0]}; {what}s of "
                f"{self.layout.name} are whole numbers from 0 to {end - 1}"
            )

    def _file(self, name: str, row: tuple[int, ...], dtype: Any) -> ArrayFile:
        if name not in self._files:
            self._files[name] = ArrayFile(self.folder / f"{name}.npy", row, dtype)
        return self._files[name]


class ArrayFile:
    """A .npy file that grows row by row; its header gets the number of rows at the end."""

    def __init__(self, path: Path, row: tuple[int, ...], dtype: Any):
        self.path, self.row, self.dtype, self.rows = path, row, np.dtype(dtype), 0
        self.file = path.open("wb", buffering=CHUNK)
        self._write_header()

    def append(self, values: np.ndarray | int) -> None:
        """Add one row; a row that is too short is filled up with zeros."""
        row = np.zeros(int(np.prod(self.row)), self.dtype)
        row[: np.size(values)] = values
        self.rows += 1
        self.file.write(row.data)

    def close(self) -> dict[str, Any]:
        self.file.seek(0)
        self._write_header()
        self.file.close()
        return {
            "dtype": self.dtype.name,
            "shape": [self.rows, *self.row],
            "bytes": self.path.stat().st_size,
            "sha256": sha256(self.path),
        }

    def _write_header(self) -> None:
        # numpy leaves room for the first axis to grow: the header's length does not depend on it
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.rows, *self.row)}
        np.lib.format.write_array_header_1_0(self.file, header)
