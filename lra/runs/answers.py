"""What a run answered on every test example, in a small file in its folder.

From it anybody recomputes accuracy and loss and compares runs example by example. It holds the
answer, the label and the log-probability of the answer; of a wrong answer that of the label too.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lra.base.config import UserError, readable
from lra.base.disk import write_atomically

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 2**28  # bytes of unpacked answers: a small file can pack any number


@dataclass(frozen=True)
class Answers:
    """One value per test example (per scored token, where a task scores tokens), in order."""

    answers: np.ndarray  # (n,) the class with the largest logit
    labels: np.ndarray  # (n,)
    log_p: np.ndarray | None = None  # (n,) of the answer, float16 in a run; None in a conversion
    log_p_label: np.ndarray | None = None  # (wrong answers,) of their labels

    @classmethod
    def of(cls, logits: Sequence[Tensor], labels: Sequence[Tensor]) -> Answers:
        """Take logits (n, classes) and labels (n,), both in parts."""
        import torch  # tables read answers without it

        z, y = torch.cat(list(logits)), torch.cat(list(labels))
        log_p = z.float().log_softmax(-1)
        best, half = log_p.argmax(-1), log_p.clamp_min(-65504).half()
        wrong = best != y
        small = np.uint8 if z.shape[-1] <= 256 else np.uint16
        return cls(
            best.numpy().astype(small),
            y.numpy().astype(small),
            half[torch.arange(len(y)), best].numpy(),
            half[wrong, y[wrong]].numpy(),
        )

    @property
    def right(self) -> np.ndarray:
        return self.answers == self.labels

    @property
    def accuracy(self) -> float:
        return float(self.right.mean())

    @property
    def loss(self) -> float | None:
        """Compute the mean cross-entropy, as exactly as float16 holds it: to about a thousandth."""
        if self.log_p is None or self.log_p_label is None:
            return None
        values = self.log_p.astype(np.float64)
        values[~self.right] = self.log_p_label
        return -float(values.mean())

    @cached_property
    def digest(self) -> str:
        """Hash the values, whatever compressed them."""
        return hash_arrays(self.answers, self.labels, self.log_p, self.log_p_label)

    @property
    def labels_digest(self) -> str:
        """Hash the labels, which are those of every run on the same test examples."""
        return hash_arrays(self.labels)

    def facts(self) -> dict[str, str]:
        return {"digest": self.digest, "labels": self.labels_digest}

    def write(self, path: Path) -> None:
        content = io.BytesIO()
        values: dict[str, Any] = {k: v for k, v in vars(self).items() if isinstance(v, np.ndarray)}
        np.savez_compressed(content, **values)
        write_atomically(path, content.getvalue())


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    with readable(path, "it holds no answers"):
        with zipfile.ZipFile(path) as archive:
            if sum(part.file_size for part in archive.infolist()) > LARGEST:
                raise UserError("more bytes than any test set has")
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            return dict(file)


def read_answers(path: Path) -> Answers:
    arrays = read_arrays(path)
    with readable(path, "train the run again"):
        stored = Answers(**arrays)
        p, p_label = stored.log_p, stored.log_p_label
        n, wrong = len(stored.labels), ~stored.right
        if p is None or p_label is None or not stored.answers.shape == p.shape == (n,) or not n:
            raise UserError("it does not hold one answer per label")
        if len(p_label) != wrong.sum():
            raise UserError("a wrong answer has no log-probability of its label")
        if (p > 0).any() or (p_label > p[wrong]).any():  # NaN is neither
            raise UserError("it holds what is no log-probability of an answer")
    return stored


def hash_arrays(*arrays: np.ndarray | None) -> str:
    state = hashlib.sha256()
    for values in arrays:
        if values is not None:
            state.update(str(values.shape).encode())
            state.update(values.astype(values.dtype.newbyteorder("<")).tobytes())
    return state.hexdigest()[:16]
