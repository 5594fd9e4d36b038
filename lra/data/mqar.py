"""Multi-query associative recall as zoology draws it (HazyResearch/zoology, Apache-2.0, its
generator `multiquery_ar`), number for number: the same seed gives the same ids and labels.

Keys are the ids 1..K, values those behind them, 0 is an empty place. The pairs come first, a key
and its value as two tokens. Behind them every key comes once more, at an even distance from the
pairs, and is asked there; gap g is drawn with a probability that goes with (g + 1)^(power - 1). A
split's numbers come from one stream of numpy's Mersenne Twister, which is frozen: all keys, then
all values, then all gaps, each a row at a time. Zoology may fill empty places with random ids, from
a generator that its seed does not set; the configuration of its Figure 2 leaves them empty.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lra.data.arrays import IGNORED

GENERATOR = "zoology-multiquery_ar-1"  # change it when the same seed gives other examples
POWER = 0.01  # zoology's, wherever it states none
HALF = 2**31


class Sizes(NamedTuple):
    pairs: int
    room: int  # places for keys that are asked, two tokens each
    keys: int
    values: int
    power: float = POWER


def seeds(seed: int) -> dict[str, int]:
    """Give the seed of each split, as zoology draws them from the one of a run: train's below 2^31,
    test's above. It has no dev split; ours is what would be its second test set."""
    stream = np.random.RandomState(seed)
    train = stream.randint(0, HALF, dtype=np.int64)
    test, val = stream.randint(HALF, 2 * HALF, size=2, dtype=np.int64)
    return {"train": int(train), "val": int(val), "test": int(test)}


def draw(sizes: Sizes, seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw ids (count, n), and labels (count, n): the number of the value at each key that is
    asked, which is its id less that of the first value."""
    pairs, room, first_value = sizes.pairs, sizes.room, sizes.keys + 1
    stream = np.random.RandomState(seed)
    keys = 1 + _rows(stream, count, sizes.keys, pairs)
    values = _rows(stream, count, sizes.values, pairs)
    chances = sizes.power * np.arange(1, room + 1) ** (sizes.power - 1)
    gaps = _rows(stream, count, room, pairs, chances / chances.sum())

    ids = np.zeros((count, 2 * (pairs + room)), np.uint16)
    ids[:, 0 : 2 * pairs : 2] = keys
    ids[:, 1 : 2 * pairs : 2] = first_value + values
    labels = np.full(ids.shape, IGNORED, np.int16)
    where = 2 * (pairs + gaps)
    np.put_along_axis(ids, where, keys.astype(ids.dtype), axis=1)
    np.put_along_axis(labels, where, values.astype(labels.dtype), axis=1)
    return ids, labels


def _rows(
    stream: np.random.RandomState, count: int, n: int, k: int, p: np.ndarray | None = None
) -> np.ndarray:
    """Draw (count, k), in each row k different numbers of 0..n-1, one row after the other."""
    rows = np.empty((count, k), np.int64)
    for row in rows:
        row[:] = stream.choice(n, k, replace=False, p=p)
    return rows
