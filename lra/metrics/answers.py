"""The answers of one run to every test example, from which anybody recomputes its numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np


def _nothing() -> np.ndarray:
    return np.empty(0)


@dataclass(frozen=True)
class Answers:
    """One value, or one row, per test example (per scored token, where a task scores tokens), in
    order. What they are is said by the task's target (target.py): classes, logits of labels, or
    numbers. Classes alone have log-probabilities; those of conversions do not."""

    answers: np.ndarray  # (n,), or (n, outputs)
    labels: np.ndarray  # like answers
    log_p: np.ndarray = field(default_factory=_nothing)  # (n,) of the answer, encoded
    log_p_label: np.ndarray = field(default_factory=_nothing)  # (wrong answers,), encoded
    # (examples,): how many of the answers each example has, in order; empty: one each. Whoever has
    # the data can count them, so no file holds them.
    sizes: np.ndarray = field(default_factory=_nothing)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def right(self) -> np.ndarray:
        """Tell which answers are right, where they are classes."""
        return self.answers == self.labels

    @property
    def examples(self) -> int:
        """How many examples the answers are of: what a test set draws at random."""
        return len(self.sizes) or len(self)

    def grouped(self, sizes: np.ndarray) -> Answers:
        """The same answers, of examples of these sizes."""
        return replace(self, sizes=_nothing() if (sizes == 1).all() else sizes.astype(np.int64))

    def drawn(self, examples: np.ndarray) -> Answers:
        """The answers to these examples, in this order."""
        taken = examples
        if len(self.sizes):
            of_example = np.split(np.arange(len(self)), self.sizes.cumsum()[:-1])
            taken = np.concatenate([of_example[e] for e in examples])
        return Answers(self.answers[taken], self.labels[taken])

    def error_of_mean(self, values: np.ndarray) -> float:
        """The standard deviation of the mean of `values`, one per answer, if the test examples were
        drawn again. Answers to one example depend on each other, examples do not."""
        apart = values - values.mean()
        if len(self.sizes):
            example = np.repeat(np.arange(self.examples), self.sizes)
            apart = np.bincount(example, weights=apart, minlength=self.examples)
        return float(np.sqrt(np.square(apart).sum()) / len(values))

    def digests(self) -> dict[str, str]:
        """Hash the values, whatever compressed them, as a record holds it; and the labels, which
        are those of every run on the same test examples."""
        packed = _hash(*(values for name, values in self.arrays() if name != "labels"))
        return {"packed": packed, "labels": _hash(self.labels)}

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield what a file holds of them, by name."""
        yield "labels", self.labels
        yield "answers", self.answers
        if len(self.log_p):
            yield "log_p", self.log_p
            yield "log_p_label", self.log_p_label


def _hash(*arrays: np.ndarray) -> str:
    state = hashlib.sha256()
    for values in arrays:
        state.update(str(values.shape).encode())
        state.update(values.astype(values.dtype.newbyteorder("<")).tobytes())
    return state.hexdigest()[:16]
