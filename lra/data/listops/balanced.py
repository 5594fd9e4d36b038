"""ListOps that cannot be answered from its first tokens: whatever the root's operator and the
tokens after it are, every label is as likely as any other.

All arguments of the root are expressions, so its own digits say nothing. An expression with the
first tokens k and the label y is accepted with probability min_l p(l | k) / p(y | k), times what
makes the four operators equally frequent; p is counted on expressions that are then thrown away.
"""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import numpy as np

from lra.data.listops.generator import OPERATORS, ExpressionBlock, TreeShape, block
from lra.data.listops.tokens import VOCAB
from lra.data.parallel import ordered_map

COUNTED = 2_000_000  # expressions from which p is estimated
LEAST = 20  # of each label, for the first tokens to be accepted at all: fewer are too noisy
TOKENS = 3  # that are made uninformative
COUNTING, CHOOSING = 1, 2  # streams of random numbers


class Odds(NamedTuple):
    """With what probability an expression with these first tokens is accepted, by its label."""

    keys: np.ndarray  # (K,), sorted
    accepted: np.ndarray  # (K, 10)


def odds(shape: TreeShape, seed: int, workers: int) -> Odds:
    """Count expressions and work out how each is to be accepted."""
    make = functools.partial(block, shape=shape, seed=seed, stream=COUNTING)
    keys, labels, counted = [], [], 0
    for made in ordered_map(make, itertools.count(), workers=workers):
        keys.append(first_tokens(made))
        labels.append(made.labels)
        counted += len(made.labels)
        if counted >= COUNTED:
            break
    return count(np.concatenate(keys), np.concatenate(labels))


def count(keys: np.ndarray, labels: np.ndarray) -> Odds:
    names, row = np.unique(keys, return_inverse=True)
    seen = np.zeros((len(names), 10))
    np.add.at(seen, (row, labels), 1)
    rarest = seen.min(axis=1)
    rarest[rarest < LEAST] = 0
    root = names // VOCAB ** (TOKENS - 1)
    passed = np.array([rarest[root == operator].sum() for operator in OPERATORS])
    share = np.zeros(VOCAB)
    share[OPERATORS] = passed.min() / np.maximum(passed, 1)
    accepted = (rarest * share[root])[:, None] / np.maximum(seen, 1)
    return Odds(names, accepted)


def balanced_block(number: int, shape: TreeShape, seed: int, odds: Odds) -> ExpressionBlock:
    """Draw block `number`, and of it the expressions that are accepted."""
    made = block(number, shape, seed)
    keys = first_tokens(made)
    at = np.searchsorted(odds.keys, keys).clip(max=len(odds.keys) - 1)
    chance = np.where(odds.keys[at] == keys, odds.accepted[at, made.labels], 0)
    sequence = np.random.SeedSequence(seed, spawn_key=(number, CHOOSING))
    taken = np.random.Generator(np.random.PCG64(sequence)).random(len(keys)) < chance
    tokens = made.tokens[np.repeat(taken, made.lengths)]
    return ExpressionBlock(tokens, made.lengths[taken], made.labels[taken])


def first_tokens(made: ExpressionBlock) -> np.ndarray:
    """Give the first tokens of each expression as one number."""
    start = np.cumsum(made.lengths) - made.lengths
    key = np.zeros(len(start), np.int64)
    for i in range(TOKENS):
        key = key * VOCAB + made.tokens[start + i]
    return key
