"""The order in which TensorFlow Datasets stores a split, without TensorFlow Datasets.

Examples are sorted by MD5(split name + key) as a 128-bit integer; percent slices cut that order,
a bound being percent * n / 100 rounded to the nearest integer. The same in versions 4.0.1 and
4.9, for any number of shards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np


def order(split: str, keys: Iterable[int | str | bytes]) -> np.ndarray:
    """Sort `keys`: element 0 is the position of the example that is stored first."""
    salt = hashlib.md5(split.encode(), usedforsecurity=False)
    digests = []
    for key in keys:
        digest = salt.copy()
        digest.update(key if isinstance(key, bytes) else str(key).encode())
        digests.append(digest.digest())
    return np.array(sorted(range(len(digests)), key=digests.__getitem__), np.int64)


def percent(n: int, start: float, end: float) -> slice:
    """Give the slice `[start%:end%]` of n examples."""
    return slice(round(start * n / 100), round(end * n / 100))
