"""Gradient boosting of decision trees (Friedman 2001), with the same result on every machine.

Libraries sum floats in an order that threads decide, and their exp differs by CPU. Here logits are
whole numbers of 1/1024, their exp is a product of two tables whose entries are rounded correctly,
gradients are whole numbers, and all else is single operations of IEEE 754. A tree is grown level by
level to its full depth: in each node the column and the threshold with the largest

    gain = GL² / (nL + l2) + GR² / (nR + l2)      G: sum of gradients, n: examples of a side

and its leaves are steps of Newton's method, G / (H + l2). The number of rounds is the best on val.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from decimal import Decimal
from typing import NamedTuple

import numpy as np

UNIT = 1024  # of logits, and of what numbers are predicted in
SLOPE = 2**20  # unit of gradients
MOST_BINS = 256  # of a column
CLIP = 16 * UNIT  # difference of logits beyond which a probability is 0
TABLE = 128  # entries of a table of exp
DEPTH = 6  # of a tree
ROUNDS = 100
PATIENCE = 20  # rounds without a better score on val
RATE = 0.1
L2 = 5.0  # examples' worth of gradient 0 in each leaf: keeps small leaves small
MOST = 32_768  # training examples: more make it slow and hardly better


class Kind(NamedTuple):
    """What the logits (n, outputs) of an ensemble mean, by what a task asks."""

    asks: str  # classes, labels or numbers
    outputs: int  # one for two classes

    def wanted(self, labels: np.ndarray) -> np.ndarray:
        """Give the target of each logit: (n, outputs), whole numbers in SLOPE."""
        if self.asks == "numbers":  # in units of their spread
            return np.rint(labels.reshape(len(labels), -1) * SLOPE)
        if self.asks == "labels" or self.outputs == 1:
            return labels.reshape(len(labels), -1) * float(SLOPE)
        return np.equal.outer(labels, np.arange(self.outputs)) * float(SLOPE)

    def start(self, wanted: np.ndarray) -> np.ndarray:
        """Give the logits of the best constant answer: (outputs,)."""
        share = (wanted.sum(0) / SLOPE + (self.asks != "numbers")) / (len(wanted) + 2)
        if self.asks == "numbers":
            return np.rint(share * UNIT)
        odds = [p if self.softmax else p / (1 - p) for p in share.tolist()]
        return np.array([round(UNIT * math.log(p)) for p in odds], np.float64)

    @property
    def softmax(self) -> bool:
        return self.asks == "classes" and self.outputs > 1

    def slopes(self, logits: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute minus the first and the second derivative of the loss, in SLOPE and in 1."""
        if self.asks == "numbers":
            return wanted - np.rint(logits * (SLOPE // UNIT)), np.ones_like(logits)
        if self.softmax:
            e = exp(logits - logits.max(1, keepdims=True))
            p = e / e.sum(1, keepdims=True)
        else:
            small = exp(-np.abs(logits))
            p = np.where(logits > 0, float(SLOPE), small) / (SLOPE + small)
        p = np.rint(p * SLOPE)
        return wanted - p, np.rint(p * (1 - p / SLOPE)) / SLOPE

    def answers(self, logits: np.ndarray) -> np.ndarray:
        """Turn logits into classes, logits of labels, or numbers in units of their spread."""
        if self.asks != "classes":
            return logits / UNIT
        return logits.argmax(1) if self.outputs > 1 else (logits[:, 0] > 0).astype(np.int64)


@functools.cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """exp(-i / 8) and exp(-i / 1024), i < 128."""
    steps = Decimal(TABLE) / UNIT, Decimal(1) / UNIT
    high, low = (np.array([float((-i * step).exp()) for i in range(TABLE)]) for step in steps)
    return high, low


def exp(logits: np.ndarray) -> np.ndarray:
    """Compute SLOPE exp(logits) as whole numbers, so that sums of it are exact; logits <= 0."""
    at = np.minimum(-logits, CLIP - 1).astype(np.int64)
    high, low = _tables()
    return np.rint(high[at // TABLE] * low[at % TABLE] * SLOPE)


# ---------------------------------------------------------------------- columns and trees


def edges_of(columns: np.ndarray) -> list[np.ndarray]:
    """Choose what cuts each column into bins: its values, or as many of its quantiles."""
    edges = []
    for column in columns.T:
        values = np.unique(column)
        if len(values) > MOST_BINS:
            ranks = np.arange(1, MOST_BINS) * len(column) // MOST_BINS
            values = np.unique(np.sort(column)[ranks])
        edges.append(values)
    return edges


def binned(columns: np.ndarray, edges: list[np.ndarray]) -> np.ndarray:
    """Number the bin of each value: (columns, n), so that a column lies in one piece."""
    bins = [np.searchsorted(cuts, column) for column, cuts in zip(columns.T, edges, strict=True)]
    return np.array(bins, np.uint16).reshape(len(edges), len(columns))


class Tree(NamedTuple):
    columns: list[np.ndarray]  # of each level (nodes,): what is compared ...
    cuts: list[np.ndarray]  # ... and the last bin that goes left
    leaves: np.ndarray  # (2^depth,), in UNIT

    def __call__(self, bins: np.ndarray) -> np.ndarray:
        rows, node = np.arange(bins.shape[1]), np.zeros(bins.shape[1], np.int64)
        for column, cut in zip(self.columns, self.cuts, strict=True):
            node = 2 * node + (bins[column[node], rows] > cut[node])
        return self.leaves[node]


def grow(bins: np.ndarray, sizes: list[int], g: np.ndarray, h: np.ndarray, rate: float) -> Tree:
    """Grow one tree on binned columns (columns, n) and the slopes (n,) of one output."""
    rows, node = np.arange(len(g)), np.zeros(len(g), np.int64)
    columns, cuts = [], []
    for level in range(DEPTH):
        nodes = 2**level
        best, column, cut = np.full(nodes, -1.0), np.zeros(nodes, np.int64), np.zeros(nodes, int)
        for i, size in enumerate(sizes):
            place, shape = node * size + bins[i], (nodes, size)
            ups = np.bincount(place, g, nodes * size).reshape(shape).cumsum(1)
            n = np.bincount(place, minlength=nodes * size).reshape(shape).cumsum(1)
            gain = ups**2 / (n + L2) + (ups[:, -1:] - ups) ** 2 / (n[:, -1:] - n + L2)
            where = gain.argmax(1)
            most = gain[np.arange(nodes), where]
            better = most > best  # of equal ones the first, on every machine
            best, column = np.where(better, most, best), np.where(better, i, column)
            cut = np.where(better, where, cut)
        node = 2 * node + (bins[column[node], rows] > cut[node])
        columns.append(column)
        cuts.append(cut)
    total, curve = (np.bincount(node, slope, 2**DEPTH) for slope in (g, h))
    return Tree(columns, cuts, np.rint(UNIT * rate * (total / SLOPE) / (curve + 1.0)))


def boosted(
    kind: Kind,
    parts: list[np.ndarray],
    labels: np.ndarray,
    score: Callable[[np.ndarray], float],
    *,
    rounds: int = ROUNDS,
    go_on: Callable[[], bool] = lambda: True,
) -> list[np.ndarray]:
    """Fit to the columns (n, columns) of the first part and its labels, and answer all others. The
    second one is val, whose answers `score` values, the more the better. `go_on` says after each
    round if there is time for another."""
    edges = edges_of(parts[0][:MOST])
    sizes = [len(cuts) + 1 for cuts in edges]
    bins = [binned(part, edges) for part in (parts[0][:MOST], *parts[1:])]
    wanted = kind.wanted(labels[:MOST])
    logits = [np.tile(kind.start(wanted), (part.shape[1], 1)) for part in bins]
    best, kept, since = -math.inf, [part.copy() for part in logits[1:]], 0
    for _ in range(rounds):
        g, h = kind.slopes(logits[0], wanted)
        for output in range(kind.outputs):
            tree = grow(bins[0], sizes, g[:, output], h[:, output], RATE)
            for of_part, values in zip(bins, logits, strict=True):
                values[:, output] += tree(of_part)
        since += 1
        if (new := score(kind.answers(logits[1]))) > best:
            best, kept, since = new, [part.copy() for part in logits[1:]], 0
        if since == PATIENCE or not go_on():
            break
    return [kind.answers(part) for part in kept]
