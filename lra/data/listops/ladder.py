"""How deep must one read in an expression? What is known of its value from its first levels.

A reader of depth d sees operators and digits inside at most d brackets, and that an argument is an
expression where it sees no more of it; one that sees `operators` also sees those of the next level.
Of what it does not see it knows how expressions are drawn (generator.py), but for the limits of
their length. From this follows the probability of each value, without a draw: given what is seen,
arguments are independent, so an operator's distribution follows from those of its arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from lra.data.arrays import Split
from lra.data.listops.generator import OPERATORS, TreeShape
from lra.data.listops.rules import depths
from lra.data.listops.tokens import DIGITS, MAX, MED, MIN, OPENING
from lra.data.rules import Rule

DEPTHS = range(1, 5)
SURE = 0.9  # probability of the right value from which a reader is said to know it
READ = 256  # expressions at once
DIGITS_KEPT = 9  # of a probability
AT_ONCE = 2**22  # numbers of a table of medians
BALANCE, ROUNDS = 4000, 30  # training examples that say how labels were balanced, and rounds
ALL = np.eye(10)
Blocks = Callable[[Split], Iterator[np.ndarray]]  # its expressions with their brackets: (B, N)


def stored(split: Split) -> Iterator[np.ndarray]:
    for start in range(0, len(split), READ):
        rows = np.arange(start, min(start + READ, len(split)))
        yield split.ids(rows, int(split.lengths(rows).max()))


def blocks_of(expressions: list[np.ndarray]) -> Iterator[np.ndarray]:
    """Pad expressions (N,) to blocks."""
    for start in range(0, len(expressions), READ):
        part = expressions[start : start + READ]
        block = np.zeros((len(part), max(map(len, part))), np.uint8)
        for row, ids in zip(block, part, strict=True):
            row[: len(ids)] = ids
        yield block


class Reader:
    """A reader of so many levels; calling it is the answer of a rule."""

    def __init__(self, shape: TreeShape, blocks: Blocks, depth: int, *, operators: bool = False):
        self.shape, self.blocks, self.depth, self.operators = shape, blocks, depth, operators

    def __call__(self, train: Split, val: Split, splits: list[Split]) -> list[np.ndarray]:
        return [p.argmax(axis=1) for p in self.probabilities(train, splits)]

    def probabilities(self, train: Split, splits: list[Split]) -> list[np.ndarray]:
        """Give the probability of each value for the examples of each split: (N, 10). They are
        rounded, so that every machine takes the same one of equal ones, the first."""
        known = [self._read(split) for split in splits]
        if not self.shape.nested:
            return [p.round(DIGITS_KEPT) for _, p in known]
        weights = _balance(*self._read(train.first(BALANCE)))
        return [_weighed(first, p, weights).round(DIGITS_KEPT) for first, p in known]

    def _read(self, split: Split) -> tuple[np.ndarray, np.ndarray]:
        """Give the first tokens (N,) and the distributions (N, 10)."""
        first, known = [], []
        for ids in self.blocks(split):
            first.append(ids[:, 0].astype(np.int64))
            known.append(distributions(ids, self.shape, self.depth, operators=self.operators))
        return np.concatenate(first), np.concatenate(known)


def readers(shape: TreeShape, blocks: Blocks) -> dict[str, Rule]:
    """List the readers, from the least that is read to the most."""
    made = {}
    for depth in DEPTHS:
        levels = "the first operator and its digits" if depth == 1 else f"{depth} levels"
        for operators in (False, True):
            name = f"depth {depth}" + (" and operators" if operators else "")
            reads = f"{levels}, and the operators below" if operators else levels
            made[name] = Rule(reads, Reader(shape, blocks, depth, operators=operators))
    return made


def rungs(shape: TreeShape, blocks: Blocks, train: Split, split: Split) -> np.ndarray:
    """Give the least depth whose reader is SURE of the right value, or one more than all: (N,)."""
    least = np.full(len(split), DEPTHS[-1] + 1)
    for depth in reversed(DEPTHS):
        (known,) = Reader(shape, blocks, depth).probabilities(train, [split])
        least[known[np.arange(len(split)), split.labels] > SURE] = depth
    return least


def _balance(first: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Balanced expressions were accepted by their label, so that every label is as likely after
    each first operator: find the weights (tokens, 10) of labels that make it so here."""
    weights = np.ones((OPENING[-1] + 1, 10))
    for operator in OPENING:
        rows = known[first == operator]
        for _ in range(ROUNDS if len(rows) else 0):
            share = rows * weights[operator]
            mean = (share / share.sum(axis=1, keepdims=True)).mean(axis=0)
            weights[operator] /= np.maximum(mean, 1e-9)
            weights[operator] /= weights[operator].max()
    return weights


def _weighed(first: np.ndarray, known: np.ndarray, weights: np.ndarray) -> np.ndarray:
    share = known * weights[first]
    return share / np.maximum(share.sum(axis=1, keepdims=True), 1e-300)


# ---------------------------------------------------------------------- one expression


def distributions(
    ids: np.ndarray, shape: TreeShape, depth: int, *, operators: bool = False
) -> np.ndarray:
    """Work out the value of each expression from its first levels: ids (B, N) to (B, 10)."""
    open_at = depths(ids)
    is_operator = (ids >= OPENING[0]) & (ids <= OPENING[-1])
    is_digit = (ids >= DIGITS[0]) & (ids <= DIGITS[-1])
    lowest = min(depth, int(open_at.max()))
    unseen = _unseen(shape)
    below = np.empty((0, 10))
    for level in range(lowest, 0, -1):
        nodes = is_operator & (open_at == level)
        node = np.cumsum(nodes).reshape(ids.shape) - 1  # the latest operator of this level
        argument = (is_digit & (open_at == level)) | (is_operator & (open_at == level + 1))
        tokens = ids[argument].astype(np.int64)
        known = ALL[np.where(is_digit[argument], tokens - DIGITS[0], 0)]
        inner = is_operator[argument]
        if level == lowest:
            below = unseen[level][tokens[inner] * operators]
        known[inner] = below
        below = _results(ids[nodes].astype(np.int64), node[argument], known)
    values = ALL[np.clip(ids[:, 0].astype(np.int64) - DIGITS[0], 0, 9)]
    values[is_operator[:, 0]] = below
    return values


def _results(operators: np.ndarray, node: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Give the distribution of each operator (M, 10) from those of all arguments (A, 10), which
    belong to the operators `node` (A,), in order."""
    made = np.empty((len(operators), 10))
    count = np.bincount(node, minlength=len(operators))
    first = np.cumsum(count) - count
    for n in np.unique(count):
        rows = np.flatnonzero(count == n)
        arguments = known[first[rows, None] + np.arange(n)]  # (rows, n, 10)
        for operator in np.unique(operators[rows]):
            of = operators[rows] == operator
            made[rows[of]] = result(int(operator), arguments[of])
    return made


# ---------------------------------------------------------------------- an operator's value


def result(operator: int, arguments: np.ndarray) -> np.ndarray:
    """Give the distribution (M, 10) of an operator on independent arguments (M, n, 10)."""
    if operator == MAX:
        return _steps(arguments.cumsum(axis=2).prod(axis=1))
    if operator == MIN:
        return _steps(arguments[:, :, ::-1].cumsum(axis=2).prod(axis=1))[:, ::-1]
    if operator == MED:
        size = 55 * (arguments.shape[1] // 2 + 2) ** 2
        step = max(1, AT_ONCE // size)
        parts = [_median(arguments[i : i + step]) for i in range(0, len(arguments), step)]
        return np.concatenate(parts)
    spectrum = np.fft.fft(arguments, axis=2).prod(axis=1)  # of a sum modulo 10
    return np.maximum(np.fft.ifft(spectrum, axis=1).real, 0)


def _steps(upto: np.ndarray) -> np.ndarray:
    return np.diff(upto, axis=1, prepend=0)


def _median(arguments: np.ndarray) -> np.ndarray:
    """Of an even number of arguments it is the mean of the two in the middle, rounded down. Count
    for each two values a <= b how many arguments are at most a, and at most b."""
    m, n, _ = arguments.shape
    low, high = (n + 1) // 2, n // 2 + 1  # the ranks of the two in the middle; of odd n the same
    a, b = np.triu_indices(10)
    upto = arguments.cumsum(axis=2)
    counts = np.zeros((m, len(a), low + 1, high + 1))  # capped, since more changes nothing
    counts[:, :, 0, 0] = 1
    for i in range(n):
        at_a, at_b = upto[:, i, a], upto[:, i, b]
        above, between = (x[:, :, None, None] for x in (1 - at_b, at_b - at_a))
        more = _more(counts, 3)
        counts = above * counts + between * more + at_a[:, :, None, None] * _more(more, 2)
    both = np.zeros((m, 11, 11))  # P(low <= a - 1, high <= b - 1)
    both[:, a + 1, b + 1] = counts[:, :, low, high]
    # The lower one is at most the upper one, so a limit of it above b is the limit b.
    both[:, b + 1, a + 1] = both[:, a + 1, a + 1]
    each = np.diff(np.diff(both, axis=1), axis=2)
    lower, upper = np.indices((10, 10))
    made = np.zeros((m, 10))
    for value in range(10):
        made[:, value] = each[:, (lower + upper) // 2 == value].sum(axis=1)
    return np.maximum(made, 0)


def _more(counts: np.ndarray, axis: int) -> np.ndarray:
    """Move counts on by one; the last one stays."""
    moved = np.roll(counts, 1, axis=axis)
    first, last = ([slice(None)] * 4 for _ in range(2))
    first[axis], last[axis] = slice(0, 1), slice(-1, None)
    moved[tuple(last)] += counts[tuple(last)]
    moved[tuple(first)] = 0
    return moved


# ---------------------------------------------------------------------- what is not seen


@functools.cache
def _unseen(shape: TreeShape) -> list[np.ndarray]:
    """Give, for each depth of a tree from 0 on, the distributions of an operator below it, one
    level deeper: (tokens, 10), where 0 stands for an operator that is not seen."""
    node = np.full(10, 0.1)  # of the deepest level, all digits
    made = [np.full((OPENING[-1] + 1, 10), np.nan)]
    for depth in range(shape.max_depth - 1, 0, -1):
        table = np.zeros((OPENING[-1] + 1, 10))
        for operator in OPERATORS.tolist():
            sizes = range(2, shape.max_args + 1)
            of_size = [result(operator, np.tile(node, (1, n, 1)))[0] for n in sizes]
            table[operator] = np.mean(of_size, axis=0)
        table[0] = table[OPERATORS].mean(axis=0)
        made.append(table)
        leaf = shape.leaves(depth)
        node = leaf * np.full(10, 0.1) + (1 - leaf) * table[0]
    return made[::-1]
