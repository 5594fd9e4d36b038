"""`single`, a probe of one token among noise.

It is after single-location regression (Marion et al., ICLR 2025, arXiv:2410.01537; Duranthon et
al. 2025, arXiv:2509.21936, prove that softmax attention attains the least risk there, and linear
attention does not). A token is the sum of a mark for every question and of a value. Question d is
about one token, whose mark d is drawn from N(s, 1), those of all others from N(0, 1), on a grid;
s^2 is the `strength`. The answer is that token's value. The ratio of both densities at x is
exp(s x - s^2 / 2), so Bayes' rule is

    P(token l is the one) = exp(s x_ld) / sum_j exp(s x_jd)
    answer                = the value v with the largest sum of P(l) over the tokens that have v

Softmax with the scores s x_ld and unit vectors as values computes these sums. Only by luck can a
network score more on the test examples than this rule (`lra data baseline`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, cast

import numpy as np

from lra.data.arrays import IGNORED, Split
from lra.data.recall import (
    BLOCK,
    EMPTY,
    FIRST_KEY,
    Probe,
    ProbeOptions,
    drawn,
    generator,
)
from lra.data.task import read_by

SCALE = 2**32  # of probabilities, whole numbers that are the same on every machine
MARGIN = 4  # standard deviations of the grid of marks beyond both means


@dataclass
class SingleOptions(ProbeOptions):
    tokens: int = read_by("generated", default=32, least=2)
    questions: int = read_by("generated", default=8, least=1)
    strength: float = read_by("generated", default=9.0, least=0)
    marks: int = read_by("generated", default=64, least=2)
    values: int = read_by("generated", default=16, least=2)
    n_train: int = read_by("generated", default=38_400, least=1)


class Single(Probe):
    name = "single"
    title = "the value of the one token that a mark tells from noise"
    sources: ClassVar = drawn("single-generator-1")
    encoding: ClassVar = {"vocabulary": "single-v1"}
    Options = SingleOptions

    def configured(self, options: dict[str, Any]) -> Single:
        task = copy.copy(self)
        task.classes, task.stack = options["values"], options["questions"] + 1
        task.vocab = FIRST_KEY + options["questions"] * (options["marks"] + 1) + options["values"]
        return task

    def width(self, options: SingleOptions, max_length: int) -> int:
        return (options.tokens + options.questions) * (options.questions + 1)

    def block(self, options: SingleOptions, number: int) -> tuple[np.ndarray, np.ndarray]:
        o, rng = options, generator(options.seed, number)
        noise, marked = mark_weights(o.marks, o.strength)
        question, row = np.arange(o.questions), np.arange(BLOCK)[:, None]
        place = rng.integers(0, o.tokens, (BLOCK, o.questions))
        marks = _draw(rng, noise, (BLOCK, o.tokens, o.questions))
        marks[row, place, question] = _draw(rng, marked, place.shape)
        values = rng.integers(0, o.values, (BLOCK, o.tokens))

        first_mark = FIRST_KEY + o.questions
        slots = np.full((BLOCK, o.tokens + o.questions, o.questions + 1), EMPTY, np.uint16)
        slots[:, : o.tokens, :-1] = first_mark + o.marks * question + marks
        slots[:, : o.tokens, -1] = first_mark + o.marks * o.questions + values
        slots[:, o.tokens :, -1] = FIRST_KEY + question
        labels = np.full(slots.shape[:2], IGNORED, np.int16)
        labels[:, o.tokens :] = values[row, place]
        return slots.reshape(BLOCK, -1), labels

    def rules(self, options: Mapping[str, Any]) -> dict[str, Any]:
        from lra.data.rules import Rule, accuracy, from_ids

        noise, marked = mark_weights(options["marks"], options["strength"])
        grid, ratio = np.arange(len(noise)), marked / noise

        def by(weights: np.ndarray) -> Any:
            return from_ids(lambda ids: self.heaviest(ids, weights))

        def linear(train: Split, val: Split, splits: list[Split]) -> list[np.ndarray]:
            rules = [by(grid - zero) for zero in range(-len(grid), len(grid), 4)]
            best = max(rules, key=lambda rule: accuracy(val, rule(train, val, [val])[0]))
            return cast(list[np.ndarray], best(train, val, splits))

        everything = "all marks and values, and what they were drawn from: nothing is better"
        return {
            "most frequent value": Rule("which value the example has most often", by(grid**0)),
            "linear weights": Rule("values by weights that are linear in their marks", linear),
            "Bayes": Rule(everything, by(ratio / ratio.max()), bound=True),
        }

    def heaviest(self, ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Answer, at each question, the value whose tokens weigh most together by its marks."""
        asked = self.stack - 1
        slots = ids.reshape(len(ids), -1, self.stack).astype(np.int64)
        tokens = slots.shape[1] - asked
        first = FIRST_KEY + asked + len(weights) * np.arange(asked)
        values = slots[:, :tokens, -1] + self.classes - self.vocab
        weight = weights[slots[:, :tokens, :-1] - first]  # (B, tokens, questions)
        mass = weight.swapaxes(1, 2) @ np.eye(self.classes)[values]
        return np.pad(mass.argmax(axis=-1), ((0, 0), (tokens, 0)))


def mark_weights(marks: int, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """Weigh the marks, in whole numbers, for a token of noise and for the one that is asked."""
    mean = Decimal(strength).sqrt()
    grid = [(mean + 2 * MARGIN) * i / (marks - 1) - MARGIN for i in range(marks)]

    def density(around: Decimal) -> np.ndarray:  # Decimal rounds exp correctly, libm need not
        return np.array([1 + int(SCALE * (-((x - around) ** 2) / 2).exp()) for x in grid])

    return density(Decimal(0)), density(mean)


def _draw(rng: np.random.Generator, weights: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    ends = weights.cumsum()
    return np.searchsorted(ends, rng.integers(0, ends[-1], shape), side="right")
