"""What a task asks of a network: the loss on its logits, and what is stored of each answer.

| target    | labels of an example             | a network gives   | stored of an answer         |
|-----------|----------------------------------|-------------------|-----------------------------|
| `classes` | a whole number, or one per token | a logit per class | class and log-probabilities |
| `labels`  | a row of 0 and 1                 | a logit per label | the logits, as float16      |
| `numbers` | a number, or a row of numbers    | the numbers       | the numbers, as float32     |

Scores are computed from what is stored, never from more: whoever has the file of answers gets the
same score, bit by bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from lra.base.errors import UserError, nearest
from lra.metrics.answers import Answers

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100  # label of a token that is not scored, as in torch's cross-entropy
SMALL = 1000  # labels; of fewer, log-probabilities are exact: a step would move their mean
SCALE = 10  # finer steps are of no use to the loss (see encode); all bytes of answers cost space
LARGEST_HALF = 65504.0
Part = tuple[np.ndarray, ...]  # of a batch: answers, labels and what else is stored


class Target(ABC):
    """`outputs` is how many numbers a network gives per example, or per token."""

    name: ClassVar[str]
    metric: ClassVar[str]  # the score of a task that names none

    def __init__(self, outputs: int):
        self.outputs = outputs

    @abstractmethod
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over all that is scored."""

    @abstractmethod
    def reduce(self, logits: Tensor, labels: Tensor) -> Part:
        """Keep what matters of the logits (n, outputs) and the labels of a batch, both of scored
        answers alone: a split may have more logits than fit into memory."""

    @abstractmethod
    def collect(self, parts: Sequence[Part]) -> Answers:
        """Store the answers to all batches of a split."""

    @abstractmethod
    def loss_of(self, answers: Answers) -> float:
        """Compute the mean loss from stored answers, as exactly as they allow."""

    @abstractmethod
    def values(self, answers: Answers) -> np.ndarray:
        """Value every answer (n,), so that two runs can be compared example by example; 1 is as
        good as can be."""

    @abstractmethod
    def constants(self, labels: np.ndarray) -> Iterable[np.ndarray]:
        """Yield answers to one example that could be the best for all examples with labels
        (n, ...)."""

    def scored(self, labels: Any) -> Any:
        """Tell which answers are scored, by their labels, of numpy or of torch: (n,), or one per
        token."""
        first = labels.reshape(len(labels), -1)[:, 0]
        return first == first

    def store(self, logits: Tensor, labels: Tensor) -> Answers:
        """Store the answers to a single batch."""
        return self.collect([self.reduce(logits, labels)])


class Classes(Target):
    """One class of several, for an example or for each of its tokens."""

    name = "classes"
    metric = "accuracy"

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        import torch.nn.functional as F

        return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED)

    def reduce(self, logits: Tensor, labels: Tensor) -> Part:
        """Give answers, labels, and the log-probabilities of both."""
        every = logits.float().log_softmax(-1)
        best = logits.argmax(-1)
        log_p = (every.gather(-1, classes[:, None])[:, 0].numpy() for classes in (best, labels))
        small = np.uint8 if logits.shape[-1] <= 256 else np.uint16
        return (best.numpy().astype(small), labels.numpy().astype(small), *log_p)

    def collect(self, parts: Sequence[Part]) -> Answers:
        best, labels, of_answers, of_labels = joined(parts)
        n, wrong = len(labels), best != labels
        codes = encode(of_labels, n)
        log_p = codes.copy()
        log_p[wrong] = encode(of_answers[wrong], n)
        return Answers(best, labels, log_p, codes[wrong])

    def loss_of(self, answers: Answers) -> float:
        """Compute the mean cross-entropy, to about a thousandth."""
        return float(losses(answers).mean())

    def values(self, answers: Answers) -> np.ndarray:
        return answers.right.astype(float)

    def constants(self, labels: np.ndarray) -> Iterable[np.ndarray]:
        yield from np.unique(labels)

    def scored(self, labels: Any) -> Any:
        return labels != IGNORED


class Labels(Target):
    """Any number of several labels: a logit for each of them."""

    name = "labels"
    metric = "f1"

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        import torch.nn.functional as F

        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))

    def reduce(self, logits: Tensor, labels: Tensor) -> Part:
        values = logits.float().clamp(-LARGEST_HALF, LARGEST_HALF).numpy().astype(np.float16)
        return values, labels.numpy().astype(np.uint8)

    def collect(self, parts: Sequence[Part]) -> Answers:
        return Answers(*joined(parts))

    def loss_of(self, answers: Answers) -> float:
        z = answers.answers.astype(np.float64)
        return float((np.logaddexp(0, z) - z * answers.labels).mean())

    def values(self, answers: Answers) -> np.ndarray:
        """The share of its labels that are right."""
        return ((answers.answers > 0) == answers.labels).mean(1)

    def constants(self, labels: np.ndarray) -> Iterable[np.ndarray]:
        """Logits of how frequent each label is, and every label for all examples."""
        share = (labels.sum(0) + 0.5) / (len(labels) + 1)
        logits = np.log(share / (1 - share))
        yield logits
        yield logits - logits.min() + 1  # all, in the same order


class Numbers(Target):
    """A number, or several. The network gives them in units of their `spread` around their
    `centre`, so that targets of any size train alike; they are stored as they were given."""

    name = "numbers"
    metric = "r2"

    def __init__(
        self, outputs: int, centre: Sequence[float] = (0.0,), spread: Sequence[float] = (1.0,)
    ):
        super().__init__(outputs)
        self.centre, self.spread = np.array(centre, np.float64), np.array(spread, np.float64)
        for name, values in (("centre", self.centre), ("spread", self.spread)):
            if values.shape not in ((1,), (outputs,)) or not np.isfinite(values).all():
                raise UserError(f"{name} of the targets must be one finite number, or {outputs}")
        if (self.spread <= 0).any():
            raise UserError("spread of the targets must be above 0: give 1 where all are equal")
        self._held: dict[Any, tuple[Tensor, Tensor]] = {}  # both, by device and type

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean squared error in units of the spread."""
        centre, spread = self._scale(logits)
        wanted = (labels.to(logits.dtype) - centre) / spread
        return (logits.reshape(labels.shape) - wanted).square().mean()

    def reduce(self, logits: Tensor, labels: Tensor) -> Part:
        given = self.given(logits.reshape(labels.shape).numpy())
        return given, labels.numpy().astype(np.float32)

    def collect(self, parts: Sequence[Part]) -> Answers:
        return Answers(*joined(parts))

    def _scale(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Keep both where the logits are: a copy in every step would wait for a GPU."""
        key = like.device, like.dtype
        if key not in self._held:
            self._held[key] = like.new_tensor(self.centre), like.new_tensor(self.spread)
        return self._held[key]

    def given(self, outputs: np.ndarray) -> np.ndarray:
        """Turn what a network gives into the units of the labels."""
        return (outputs.astype(np.float64) * self.spread + self.centre).astype(np.float32)

    def loss_of(self, answers: Answers) -> float:
        error = (answers.answers.astype(np.float64) - answers.labels) / self.spread
        return float(np.square(error).mean())

    def values(self, answers: Answers) -> np.ndarray:
        """1 minus the squared error in units of the spread."""
        error = (answers.answers.astype(np.float64) - answers.labels) / self.spread
        return 1 - np.square(error).reshape(len(answers), -1).mean(1)

    def constants(self, labels: np.ndarray) -> Iterable[np.ndarray]:
        yield labels.mean(0)
        yield np.median(labels, axis=0)


def joined(parts: Sequence[Part]) -> list[np.ndarray]:
    return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]


TARGETS: dict[str, type[Target]] = {t.name: t for t in (Classes, Labels, Numbers)}


def target_class(name: str) -> type[Target]:
    if name not in TARGETS:
        raise UserError(f"there is no target '{name}'{nearest(name, TARGETS)}")
    return TARGETS[name]


# ---------------------------------------------------------------------- log-probabilities


def losses(answers: Answers) -> np.ndarray:
    """Compute -log p of the label of each answer (n,); of classes alone."""
    values = decode(answers.log_p)
    values[~answers.right] = decode(answers.log_p_label)
    return values


def encode(log_p: np.ndarray, of_all: int) -> np.ndarray:
    """Encode log-probabilities on a test set of so many labels: one byte each, in steps of 10 % of
    1 - log p. Errors of rounding add up where many values are the same, so some are rounded the
    other way, first those that were the nearest to it, until the mean, the loss of the run, is
    right."""
    exact = np.minimum(-log_p.astype(np.float64), LARGEST_HALF)
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
