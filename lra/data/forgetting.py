"""`forgetting`, a probe of recall where keys are written several times: the latest value counts.

    k5=v3 k9=v0 k5=v1 k9=v2 k5? k9?  ->  1 at k5?, 2 at k9?

It is after the forgetting recall of zoology (HazyResearch/zoology, forgetting_mqar). Each of
`asked` keys is written `writes` times, and has a companion, written `others` times and never asked.
Both share a set of places, drawn uniformly. The key's latest write is at any of them but the first
`writes - 1`, with equal probability, and its earlier ones are drawn among those before it. Each
write has a value, drawn by itself. A token is the sum of the embeddings of a key and a value.

What rules score that read less:

1. Without order, each write of a key is as likely to be the latest as any other, because values are
   drawn by themselves; so the most frequent of its values is the best answer, which is right in
   `largest_share(writes, values)` of all cases, and in fewer where keys or questions are missing.
2. Without keys but with order, each place holds the latest value with probability
   1 / (asked (others + 1)) at most; what the best answer scores is convex in these probabilities,
   and so at most `largest_share(asked (others + 1), values)`, what as many equal ones give.
3. A rule that reads r places only (the last, the first or any others) sees the latest write of a
   key with probability r / (asked (others + 1)) at most: with the default options it must read 8 of
   64 to know one answer in five. But the last places hold it most often, and the later of two
   writes is known without the earlier: `last half of the places` is right in 77 of 100 cases. A
   rule that reads more of them does better still, up to all cases.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from lra.base.errors import UserError
from lra.data.arrays import IGNORED
from lra.data.recall import (
    BLOCK,
    EMPTY,
    FIRST_KEY,
    Probe,
    ProbeOptions,
    drawn,
    generator,
    parts,
    sample,
)
from lra.data.task import read_by


@dataclass
class ForgettingOptions(ProbeOptions):
    asked: int = read_by("generated", default=8, least=1)
    writes: int = read_by("generated", default=4, least=1)
    others: int = read_by("generated", default=4, least=0)
    keys: int = read_by("generated", default=64, least=2)
    values: int = read_by("generated", default=64, least=2)
    n_train: int = read_by("generated", default=64_000, least=1)
    n_test: int = read_by("generated", default=1000, least=1)


class Forgetting(Probe):
    name = "forgetting"
    title = "the latest values of keys that were given several"
    sources: ClassVar = drawn("forgetting-generator-1")
    encoding: ClassVar = {"vocabulary": "forgetting-v1"}
    Options = ForgettingOptions
    stack = 2

    def configured(self, options: dict[str, Any]) -> Forgetting:
        task = copy.copy(self)
        task.classes = options["values"]
        task.vocab = FIRST_KEY + options["keys"] + options["values"]
        return task

    def width(self, options: ForgettingOptions, max_length: int) -> int:
        return 2 * options.asked * (options.writes + options.others + 1)

    def check_options(self, options: ForgettingOptions) -> None:
        if 2 * options.asked > options.keys:
            raise UserError(
                f"asked={options.asked} needs twice as many different keys, not keys={options.keys}"
            )

    def block(self, options: ForgettingOptions, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw ids (BLOCK, 2 S) of S slots and labels (BLOCK, S): pairs, then questions."""
        o, rng = options, generator(options.seed, number)
        shared = o.writes + o.others  # places of a key and its companion
        pairs, row = o.asked * shared, np.arange(BLOCK)[:, None]
        keys = FIRST_KEY + sample(rng, o.keys, 2 * o.asked).reshape(BLOCK, 2, o.asked)
        values = rng.integers(0, o.values, (BLOCK, pairs))
        places = np.sort(sample(rng, pairs, pairs).reshape(BLOCK, o.asked, shared))
        latest = rng.integers(o.writes - 1, shared, (BLOCK, o.asked, 1))  # which of the places
        order = rng.random(places.shape)
        order[np.arange(shared) >= latest] = 1  # earlier writes are before it
        own = order.argsort(kind="stable").argsort(kind="stable") < o.writes - 1
        own |= np.arange(shared) == latest

        slots = np.full((BLOCK, pairs + o.asked, 2), EMPTY, np.uint16)
        written = np.where(own, keys[:, 0, :, None], keys[:, 1, :, None])
        slots[row, places.reshape(BLOCK, -1), 0] = written.reshape(BLOCK, -1)
        slots[:, :pairs, 1] = FIRST_KEY + o.keys + values
        which = sample(rng, o.asked, o.asked)
        slots[:, pairs:, 0] = keys[row, 0, which]
        labels = np.full(slots.shape[:2], IGNORED, np.int16)
        at = np.take_along_axis(places, latest, axis=2)[:, :, 0]
        labels[:, pairs:] = values[row, at[row, which]]
        return slots.reshape(BLOCK, -1), labels

    def decode(self, ids: np.ndarray) -> str:
        first_value = self.vocab - self.classes
        return " ".join(
            f"k{key - FIRST_KEY}" + (f"=v{value - first_value}" if value != EMPTY else "?")
            for key, value in ids.reshape(-1, 2).tolist()
        )

    def rules(self, options: Mapping[str, Any]) -> dict[str, Any]:
        from lra.data.rules import Rule, from_ids

        weights = latest_odds(options["asked"], options["writes"], options["others"])
        usual = "which value the example has most often"
        by_place = "values by the odds that their places are those of a latest write"
        of_key = "which value the key has most often"
        half = "the last half of the pairs, and their order"
        of_half = partial(self.latest_of_part, quarters=2, last=True)
        everything = "all pairs and their order"
        return {
            "most frequent value": Rule(usual, from_ids(self.usual)),
            "value by place": Rule(by_place, from_ids(lambda ids: self.by_place(ids, weights))),
            "most frequent value of the key": Rule(of_key, from_ids(self.usual_of_key)),
            "last half of the places": Rule(half, from_ids(of_half)),
            "latest value": Rule(everything, from_ids(self.latest), bound=True),
        }

    def by_place(self, ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Answer the value whose places weigh most together, at all tokens."""
        first_value = self.vocab - self.classes
        slots = ids.reshape(len(ids), -1, 2).astype(np.int64)
        mass = np.zeros((len(ids), self.classes))
        for place, weight in enumerate(weights):
            mass[np.arange(len(ids)), slots[:, place, 1] - first_value] += weight
        return np.repeat(mass.argmax(axis=1)[:, None], slots.shape[1], axis=1)

    def usual_of_key(self, ids: np.ndarray) -> np.ndarray:
        """Answer at each token the value that its key has most often."""
        first_value, row = self.vocab - self.classes, np.arange(len(ids))
        slots = ids.reshape(len(ids), -1, 2).astype(np.int64)
        counts = np.zeros((len(ids), first_value, self.classes), np.uint16)
        for key, value in slots.transpose(1, 2, 0):
            given = value != EMPTY
            counts[row[given], key[given], value[given] - first_value] += 1
        return counts.argmax(axis=2)[row[:, None], slots[:, :, 0]]

    def readers(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return parts(self.latest_of_part, without=["last half"])

    def latest_of_part(self, ids: np.ndarray, quarters: int, *, last: bool) -> np.ndarray:
        """Answer the latest value of a key in the pairs that are read; any, if none is there."""
        return self.latest(self.part(ids, quarters, last=last))

    def latest(self, ids: np.ndarray) -> np.ndarray:
        """Answer at each token the latest value of its key."""
        first_value, row = self.vocab - self.classes, np.arange(len(ids))
        slots = ids.reshape(len(ids), -1, 2).astype(np.int64)
        last = np.zeros((len(ids), first_value), np.int64)
        for key, value in slots.transpose(1, 2, 0):
            given = value != EMPTY
            last[row[given], key[given]] = value[given] - first_value
        return last[row[:, None], slots[:, :, 0]]


def latest_odds(asked: int, writes: int, others: int) -> np.ndarray:
    """Give the probability that a key's latest write is at each place: (asked (writes + others),).
    Its place is the i-th of a random set of `shared` places, any i from `writes` on."""
    shared = writes + others
    pairs, possible = asked * shared, range(writes - 1, shared)
    ways = [
        sum(math.comb(at, i) * math.comb(pairs - 1 - at, shared - 1 - i) for i in possible)
        for at in range(pairs)
    ]
    return np.array([way / (math.comb(pairs, shared) * len(possible)) for way in ways])
