"""`hops`, a probe of chains: what a key leads to is a key again; the value at the end is asked.

    k5>k9 k2>k7 k9=v3 k7=v1 k2? k5?  ->  1 at k2?, 3 at k5?

It is after multi-hop recall (Yao et al. 2025, arXiv:2505.17923). An example has `chains` chains of
`hops` pairs, and its pairs stand in random order. The first pairs of all chains are a map from
keys to keys, and so are the second ones, and so on; the last are a map from keys to values. All
keys of an example are different and drawn uniformly, and each value is drawn by itself. A token is
a pair, the sum of the embeddings of a key and of what it leads to; a question is a chain's key.

What rules score that read less:

1. A rule that stops a hop too early, or never reads the last map, meets values that are uniform
   whatever it has read, so it scores 1 / values.
2. A rule that misses another map, or that reads all tokens without order, pairing or questions,
   knows the values of the last map at most, and every one of them is as likely to be at the end of
   the chain that is asked; so the most frequent value is its best answer, and this is right in
   `largest_share(chains, values)` of all cases.
3. The order of the pairs is uniform and says nothing, so a rule that reads only r of the p tokens
   of pairs (the first, the last or any others) sees the pair with the answer in r / p of all cases,
   and the whole chain in about (r / p)^hops. Then it knows the answer: following chains in half of
   the pairs, and answering the most frequent value where one breaks off, is right in 39 of 100
   cases with the default options: `last half of the places, else most frequent`. A rule that reads
   more of them does better still, up to all cases.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from lra.base.errors import UserError
from lra.data.arrays import IGNORED, SPLITS
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
from lra.data.task import Job, RawSplit, read_by, sizes_of


@dataclass
class HopsOptions(ProbeOptions):
    hops: int = read_by("generated", default=2, least=1)
    chains: int = read_by("generated", default=16, least=2)
    practice: bool = read_by("generated", default=True)
    keys: int = read_by("generated", default=64, least=1)
    values: int = read_by("generated", default=16, least=2)
    n_train: int = read_by("generated", default=38_400, least=1)
    n_test: int = read_by("generated", default=1000, least=1)


class Hops(Probe):
    name = "hops"
    title = "the values at the ends of chains of keys"
    sources: ClassVar = drawn("hops-generator-1")
    encoding: ClassVar = {"vocabulary": "hops-v1"}
    Options = HopsOptions
    stack = 2
    training = False  # draw examples of train, which are other ones than those of val and test

    def configured(self, options: dict[str, Any]) -> Hops:
        task = copy.copy(self)
        task.classes = options["values"]
        task.vocab = FIRST_KEY + 2 * options["keys"] + options["values"]
        return task

    def check_options(self, options: HopsOptions) -> None:
        o = options
        if o.hops * o.chains > o.keys:
            raise UserError(
                f"hops={o.hops} times chains={o.chains} needs as many different keys, "
                f"not keys={o.keys}"
            )

    def width(self, options: HopsOptions, max_length: int) -> int:
        return 2 * (options.hops + 1) * options.chains

    def splits(self, options: HopsOptions, job: Job) -> list[RawSplit]:
        """Give train, which asks keys in the middle of chains too, and val and test, which do not.
        Without such practice softmax learns nothing: a first hop alone never lessens the loss."""
        practice = copy.copy(self)
        practice.training = True
        exam = self.examples(options)
        examples = {"train": practice.examples(options), "val": exam, "test": exam}
        sizes = sizes_of(options)
        return [RawSplit(s, itertools.islice(examples[s], sizes[s]), sizes[s]) for s in SPLITS]

    def block(self, options: HopsOptions, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw ids (BLOCK, 2 S) of S slots and labels (BLOCK, S): pairs, then questions."""
        o, rng = options, generator(options.seed, 2 * number + self.training)
        pairs = o.hops * o.chains
        keys = sample(rng, o.keys, pairs)  # those of the first map, then those of the second, ..
        values = rng.integers(0, o.values, (BLOCK, o.chains))
        where = sample(rng, pairs, pairs)
        everywhere = self.training and o.practice
        asked = sample(rng, pairs if everywhere else o.chains, o.chains)

        row = np.arange(BLOCK)[:, None]
        slots = np.full((BLOCK, pairs + o.chains, 2), EMPTY, np.uint16)
        slots[row, where, 0] = FIRST_KEY + keys
        slots[row, where[:, : -o.chains], 1] = FIRST_KEY + o.keys + keys[:, o.chains :]
        slots[row, where[:, -o.chains :], 1] = FIRST_KEY + 2 * o.keys + values
        slots[:, pairs:, 0] = FIRST_KEY + keys[row, asked]
        labels = np.full(slots.shape[:2], IGNORED, np.int16)
        labels[:, pairs:] = values[row, asked % o.chains]
        return slots.reshape(BLOCK, -1), labels

    def decode(self, ids: np.ndarray) -> str:
        first_value = self.vocab - self.classes
        first_end = (FIRST_KEY + first_value) // 2  # of the keys that pairs lead to
        words = []
        for key, end in ids.reshape(-1, 2).tolist():
            to = f"=v{end - first_value}" if end >= first_value else f">k{end - first_end}"
            words.append(f"k{key - FIRST_KEY}" + (to if end != EMPTY else "?"))
        return " ".join(words)

    def rules(self, options: Mapping[str, Any]) -> dict[str, Any]:
        from lra.data.rules import Rule, from_ids

        reads = "which value the example has most often"
        half = f"the last half of the pairs, followed from the key; where they break off, {reads}"
        everything = "all pairs, followed from the key to its value"
        of_half = partial(self.follow_part, quarters=2, last=True)
        return {
            "most frequent value": Rule(reads, from_ids(self.usual)),
            "last half of the places, else most frequent": Rule(half, from_ids(of_half)),
            "chain": Rule(everything, from_ids(self.follow), bound=True),
        }

    def readers(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return parts(self.follow_part, without=["last half"])

    def follow_part(self, ids: np.ndarray, quarters: int, *, last: bool) -> np.ndarray:
        """Answer by the pairs that are read; where a chain leaves them, the usual value."""
        ends = self.follow(self.part(ids, quarters, last=last))
        return np.where(ends < self.classes, ends, self.usual(ids))

    def follow(self, ids: np.ndarray) -> np.ndarray:
        """Answer, at each token, the value at the end of the chain of its key; the number of values
        where the chain breaks off."""
        first_value = self.vocab - self.classes
        keys = (first_value - FIRST_KEY) // 2
        slots = ids.reshape(len(ids), -1, 2).astype(np.int64)
        row = np.arange(len(ids))
        leads = np.full((len(ids), self.vocab + 1), self.vocab)  # unknown
        for key, end in slots.transpose(1, 2, 0):
            given = end != EMPTY
            leads[row[given], key[given]] = end[given]
        at = slots[:, :, 0]
        while (at < first_value).any():
            at = np.where(at < first_value, leads[row[:, None], at], at)
            at = np.where(at < first_value, at - keys, at)
        return at - first_value
