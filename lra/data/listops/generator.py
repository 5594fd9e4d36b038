"""ListOps expressions, many at once: the tree distribution of google-research/long-range-arena,
`lra_benchmarks/data/listops.py`, re-derived level by level in numpy.

node(depth): a digit with probability p_leaf, and always at max_depth; otherwise an operator with
2..max_args arguments, both uniform. An expression's length counts one token per digit and two per
operator; it is accepted when min_length < length < max_length, both strict. Nothing depends on
the digits and operators but the value, so only accepted trees draw them.

A block of trees is a function of (shape, seed, block number) alone. Blocks are used in the order
of their numbers, which makes the data the same for any number of workers.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lra.base.errors import UserError
from lra.data.listops.tokens import CLOSE, DIGITS, MAX, MED, MIN, SM
from lra.data.parallel import ordered_map

VERSION = "listops-generator-1"  # change it when the same seed gives other expressions

OPERATORS = np.array([MAX, MED, MIN, SM], np.uint8)  # consecutive ids
# Expected nodes: few enough for the caches, enough to hide numpy's overhead.
NODES_PER_BLOCK = 2**20
FRUITLESS_BLOCKS = 64  # in a row, before the options are declared impossible


@dataclass(frozen=True)
class TreeShape:
    min_length: int
    max_length: int
    max_depth: int
    max_args: int
    p_leaf: float
    nested: bool = False  # all arguments of the root are operators (balanced.py)

    def __post_init__(self) -> None:
        for name, value, holds, allowed in (
            ("p_leaf", self.p_leaf, 0 <= self.p_leaf < 1, "in [0, 1)"),
            ("max_args", self.max_args, 2 <= self.max_args <= 25, "between 2 and 25"),
            ("max_depth", self.max_depth, self.max_depth >= 1, "at least 1"),
            ("min_length", self.min_length, self.min_length >= 0, "at least 0"),
            (
                "max_length",
                self.max_length,
                self.max_length > self.min_length + 1,
                f"at least {self.min_length + 2}, so that a length lies strictly between them",
            ),
        ):
            if not holds:
                raise UserError(f"{name}={value} is out of range: it must be {allowed}")
        if self.mean_nodes() > 10_000:
            raise UserError(
                f"these trees have {self.mean_nodes():.2g} nodes on average, 10,000 are allowed: "
                "lower max_depth or max_args, or raise p_leaf"
            )

    def mean_nodes(self) -> float:
        """Compute the mean size of a raw tree: from each depth to the next, nodes multiply by the
        mean number of children. Added up one by one because the last bit of a power depends on
        libm, and the data depend on the result."""
        total, level = 0.0, 1.0
        for depth in range(1, self.max_depth + 1):
            total += level
            level *= (1 - self.leaves(depth)) * (2 + self.max_args) / 2
        return total

    def leaves(self, depth: int) -> float:
        """Give the probability of a digit; the root has depth 1."""
        return 0.0 if self.nested and depth <= 2 else self.p_leaf

    def block_trees(self) -> int:
        return max(64, int(NODES_PER_BLOCK / self.mean_nodes()))


class Level(NamedTuple):
    """All nodes of one depth, in order of appearance; the children of a node are neighbours."""

    args: np.ndarray  # number of arguments, 0 for a digit
    ops: np.ndarray  # indices of the operators
    length: np.ndarray  # tokens of the node's subexpression

    def first(self) -> np.ndarray:
        counts = self.args[self.ops]
        return np.cumsum(counts) - counts


class ExpressionBlock(NamedTuple):
    tokens: np.ndarray  # uint8, all expressions one after another
    lengths: np.ndarray
    labels: np.ndarray

    def expressions(self) -> Iterator[tuple[np.ndarray, int]]:
        ends = np.cumsum(self.lengths)
        for start, end, label in zip(ends - self.lengths, ends, self.labels, strict=True):
            yield self.tokens[start:end], int(label)


def grow(rng: np.random.Generator, trees: int, shape: TreeShape) -> list[Level]:
    levels, width = [], trees
    for depth in range(1, shape.max_depth + 1):
        args = np.zeros(width, np.int32)
        ops = np.empty(0, np.intp)
        if depth < shape.max_depth:
            ops = np.flatnonzero(rng.random(width, np.float32) >= shape.leaves(depth))
            args[ops] = rng.integers(2, shape.max_args + 1, len(ops), np.int32)
        levels.append(Level(args, ops, np.ones(width, np.int32)))
        width = int(args.sum())
        if width == 0:
            break
    for level, below in itertools.pairwise(reversed(levels)):
        below.length[below.ops] = 2 + np.add.reduceat(level.length, below.first())
    return levels


def accept(levels: list[Level], shape: TreeShape) -> list[Level]:
    """Select the trees of an accepted length, with everything below their roots."""
    root = levels[0].length
    keep = (root > shape.min_length) & (root < shape.max_length)
    accepted = []
    for level in levels:
        args = level.args[keep]
        ops = np.flatnonzero(args)
        accepted.append(Level(args, ops, level.length[keep]))
        keep = np.repeat(keep[level.ops], level.args[level.ops])
        if not len(ops):
            break
    return accepted


def fill_in(rng: np.random.Generator, levels: list[Level]) -> ExpressionBlock:
    """Draw digits and operators, put every token in its place, and evaluate from the leaves up."""
    lengths = levels[0].length
    tokens = np.empty(int(lengths.sum()), np.uint8)
    starts = [np.cumsum(lengths) - lengths]  # of each node, in tokens
    for level, below in itertools.pairwise(levels):
        before = np.cumsum(below.length) - below.length  # siblings follow each other ...
        offset = starts[-1][level.ops] + 1 - before[level.first()]  # ... right after their operator
        starts.append(before + np.repeat(offset, level.args[level.ops]))
    values = np.empty(0, np.uint8)
    for level, start in zip(reversed(levels), reversed(starts), strict=True):
        children, values = values, rng.integers(0, 10, len(level.args), np.uint8)
        tokens[start] = values + DIGITS[0]
        if len(level.ops):
            op = OPERATORS[rng.integers(0, len(OPERATORS), len(level.ops), np.uint8)]
            values[level.ops] = apply(op, children, level.args[level.ops])
            at = start[level.ops]
            tokens[at] = op
            tokens[at + level.length[level.ops] - 1] = CLOSE
    return ExpressionBlock(tokens, lengths, values)


def apply(op: np.ndarray, children: np.ndarray, args: np.ndarray) -> np.ndarray:
    """Evaluate each operator on its args[i] values, which follow each other in `children`."""
    row = np.repeat(np.arange(len(args)), args)
    first = np.cumsum(args) - args
    table = np.full((len(args), args.max()), 255, np.uint8)  # 255 sorts behind every value
    table[row, np.arange(len(children)) - first[row]] = children
    table.sort(axis=1)
    at = np.arange(len(args))
    largest, smallest = table[at, args - 1], table[:, 0]
    # an even count has two in the middle: their mean, truncated
    middle = (table[at, (args - 1) // 2] + table[at, args // 2]) // 2
    total = np.add.reduceat(children, first)  # at most 25 * 9: fits
    return np.choose(op - OPERATORS[0], [largest, middle, smallest, total % 10])


def block(number: int, shape: TreeShape, seed: int, stream: int | None = None) -> ExpressionBlock:
    key = (number,) if stream is None else (number, stream)
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))
    return fill_in(rng, accept(grow(rng, shape.block_trees(), shape), shape))


def generate(
    shape: TreeShape, *, seed: int, workers: int = 1, make: Callable[..., ExpressionBlock] = block
) -> Iterator[tuple[np.ndarray, int]]:
    """Draw distinct accepted expressions without end, as (token ids, value)."""
    seen: set[bytes] = set()
    fruitless = 0
    make = functools.partial(make, shape=shape, seed=seed)
    for made in ordered_map(make, itertools.count(), workers=workers):
        before = len(seen)
        for tokens, value in made.expressions():
            digest = hashlib.blake2b(tokens.tobytes(), digest_size=16).digest()
            if digest not in seen:
                seen.add(digest)
                yield tokens, value
        fruitless = 0 if len(seen) > before else fruitless + 1
        if fruitless == FRUITLESS_BLOCKS:
            trees = FRUITLESS_BLOCKS * shape.block_trees()
            raise UserError(
                f"{trees:,} trees brought no expression with {shape.min_length} < length < "
                f"{shape.max_length} beyond {len(seen):,} others: ask for fewer examples, or widen "
                "min_length, max_length or max_depth"
            )
