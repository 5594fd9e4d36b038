"""Answers of runs to every test example, from which anybody recomputes accuracy and loss.

A file has those of one run or many: `answers.npz` in a run's folder, `<sweep>.npz` beside the
records in `<sweep>.jsonl`. Runs on the same test examples share their labels. Under the digest <d>
of the labels there are `<d>.labels` (n,), `<d>.runs` (runs,), `<d>.answers` and `<d>.log_p`
(runs, n), and `<d>.log_p_label` of all wrong answers, one run after the other. Labels and answers
are exact. A log-probability is one byte, round(SCALE * log(1 - log p)), in which a step is 10 % of
1 - log p; on test sets of fewer than SMALL labels it is -log p itself.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lra.base.disk import write_atomically
from lra.base.errors import UserError, readable

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 2**28  # bytes of unpacked answers: a small file can pack any number
SMALL = 1000  # labels; of fewer, log-probabilities are exact: a step would move their mean
SCALE = 10  # finer steps are of no use to the loss (see encode); all bytes of answers cost space
VALUES = ("labels", "runs", "answers", "log_p", "log_p_label")


@dataclass(frozen=True)
class Answers:
    """One value per test example (per scored token, where a task scores tokens), in order. Those of
    conversions, which are in their records, have no log-probabilities."""

    answers: np.ndarray  # (n,) the class with the largest logit
    labels: np.ndarray  # (n,)
    log_p: np.ndarray  # (n,) of the answer, encoded
    log_p_label: np.ndarray  # (wrong answers,) of their labels, encoded

    @classmethod
    def of(cls, logits: Sequence[Tensor], labels: Sequence[Tensor]) -> Answers:
        """Take logits (n, classes) and labels (n,), both in parts."""
        import torch  # tables read answers without it

        z, y = torch.cat(list(logits)), torch.cat(list(labels))
        best, n = z.argmax(-1), len(y)
        wrong = (best != y).numpy()
        rows, every = torch.arange(n), z.float().log_softmax(-1)
        of_answers, of_labels = (every[rows, classes].numpy() for classes in (best, y))
        codes = encode(of_labels, n)
        log_p = codes.copy()
        log_p[wrong] = encode(of_answers[wrong], n)
        small = np.uint8 if z.shape[-1] <= 256 else np.uint16
        return cls(best.numpy().astype(small), y.numpy().astype(small), log_p, codes[wrong])

    @property
    def right(self) -> np.ndarray:
        return self.answers == self.labels

    @property
    def accuracy(self) -> float:
        return float(self.right.mean())

    @property
    def loss(self) -> float:
        """Compute the mean cross-entropy, to about a thousandth."""
        losses = decode(self.log_p)
        losses[~self.right] = decode(self.log_p_label)
        return float(losses.mean())

    def digests(self) -> dict[str, str]:
        """Hash the values, whatever compressed them, as a record holds it; and the labels, which
        are those of every run on the same test examples."""
        packed = _hash(self.answers, self.log_p, self.log_p_label)
        return {"packed": packed, "labels": _hash(self.labels)}


def write_answers(path: Path, answers: Mapping[str, Answers]) -> None:
    """Write the answers of runs by their names. The same answers always give the same bytes."""
    groups = defaultdict[str, list[str]](list)
    for run, of_run in answers.items():
        groups[of_run.digests()["labels"]].append(run)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for group, runs in sorted(groups.items()):
            several = [answers[run] for run in runs]
            arrays = (
                several[0].labels,
                np.array(runs),
                np.stack([a.answers for a in several]),
                np.stack([a.log_p for a in several]),
                np.concatenate([a.log_p_label for a in several]),
            )
            for name, values in zip(VALUES, arrays, strict=True):
                part = zipfile.ZipInfo(f"{group}.{name}.npy")  # its date is always 1980
                part.compress_type = zipfile.ZIP_LZMA
                with archive.open(part, "w") as file:
                    np.lib.format.write_array(file, values, allow_pickle=False)
    write_atomically(path, content.getvalue())


def read_answers(path: Path, run: str, digests: Mapping[str, Any]) -> Answers:
    """Read the answers of one run; UserError if they are not those of its record."""
    with readable(path, "export the runs again, or train this one again"):
        status = path.stat()
        answers = _read(path, status.st_mtime_ns, status.st_size).get(run)
        if answers is None or not answers.digests().items() <= digests.items():
            raise UserError("these are not the answers of the record beside it")
    return answers


@lru_cache(maxsize=16)
def _read(path: Path, *version: int) -> dict[str, Answers]:
    """Read the answers of every run in this version of the file."""
    by_run: dict[str, Answers] = {}
    with zipfile.ZipFile(path) as archive:
        if sum(part.file_size for part in archive.infolist()) > LARGEST:
            raise UserError("more bytes than any test set has")
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    for group in {name.partition(".")[0] for name in arrays}:
        labels, runs, answers, log_p, log_p_label = (arrays[f"{group}.{v}"] for v in VALUES)
        wrong = answers != labels
        if answers.shape != log_p.shape or len(log_p_label) != wrong.sum():
            raise UserError("it does not have one log-probability per answer")
        steps = 0 if log_p.dtype == np.float16 else 2  # by which both may have been rounded
        less_likely = log_p_label + float(steps) >= log_p[wrong]
        if not (log_p >= 0).all() or not less_likely.all():  # NaN is neither
            raise UserError("it holds what is no log-probability of an answer")
        of_labels = np.split(log_p_label, wrong.sum(1).cumsum()[:-1])
        for run, a, p, p_label in zip(runs, answers, log_p, of_labels, strict=True):
            by_run[str(run)] = Answers(a, labels, p, p_label)
    return by_run


def encode(log_p: np.ndarray, of_all: int) -> np.ndarray:
    """Encode log-probabilities on a test set of so many labels. Errors of rounding add up where
    many values are the same, so some are rounded the other way, first those that were the nearest
    to it, until the mean, the loss of the run, is right."""
    exact = np.minimum(-log_p.astype(np.float64), 65504)  # the largest of float16
    if of_all < SMALL:
        return exact.astype(np.float16)
    codes = np.rint(SCALE * np.log1p(exact)).clip(0, 255)
    errors = decode(codes) - exact
    step = -np.sign(errors.sum())
    order = np.argsort(step * errors, kind="stable")
    other = (codes + step).clip(0, 255)
    change = np.abs(decode(other) - decode(codes))[order]
    back = order[: np.searchsorted(np.cumsum(change) - change / 2, abs(errors.sum()))]
    codes[back] = other[back]
    return codes.astype(np.uint8)


def decode(codes: np.ndarray) -> np.ndarray:
    """Compute -log p in float64."""
    values = codes.astype(np.float64)
    return values if codes.dtype == np.float16 else np.expm1(values / SCALE)


def _hash(*arrays: np.ndarray) -> str:
    state = hashlib.sha256()
    for values in arrays:
        state.update(str(values.shape).encode())
        state.update(values.astype(values.dtype.newbyteorder("<")).tobytes())
    return state.hexdigest()[:16]
