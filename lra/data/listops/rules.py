"""Rules for ListOps that never look into a nested expression (lra/data/rules.py)."""

from __future__ import annotations

import numpy as np

from lra.data.listops.tokens import CLOSE, DIGITS, MAX, MED, MIN, OPENING, VOCAB
from lra.data.rules import Rule, by_key, first_tokens

FIRST = 6  # tokens that the table of first tokens reads at most


def depths(ids: np.ndarray) -> np.ndarray:
    """How many operators are open after each token: (B, N)."""
    opens = (ids >= OPENING[0]) & (ids <= OPENING[-1])
    return np.cumsum(opens.astype(np.int16) - (ids == CLOSE), axis=1)


def nesting(ids: np.ndarray) -> np.ndarray:
    """The greatest number of operators that are open at once: (B,). 0 is a digit alone."""
    return depths(ids).max(axis=1)


def own_digits(ids: np.ndarray) -> np.ndarray:
    """The operator, and what it gives for its own digits; 10 where it has none."""
    operator = ids[:, 0].astype(np.int64)
    is_own = depths(ids) == (operator >= OPENING[0])[:, None]
    tally = np.stack([((ids == digit) & is_own).sum(axis=1) for digit in DIGITS], axis=1)  # (B, 10)
    n, upto = tally.sum(axis=1), tally.cumsum(axis=1)
    low, high = ((upto > at[:, None]).argmax(axis=1) for at in ((n - 1) // 2, n // 2))
    results = {
        MAX: 9 - (tally[:, ::-1] > 0).argmax(axis=1),
        MIN: (tally > 0).argmax(axis=1),
        MED: (low + high) // 2,
    }
    total = tally @ np.arange(10) % 10
    result = np.select([operator == name for name in results], list(results.values()), total)
    return operator * 11 + np.where(n > 0, result, 10)


def _no_median(ids: np.ndarray) -> np.ndarray:
    operator = ids[:, 0].astype(np.int64)
    return np.where(operator == MED, MED * 11, own_digits(ids))


OWN = "the first operator and the digits that are its own arguments"
FLAT = {
    "first operator": Rule("the first token alone", by_key(lambda ids: ids[:, 0])),
    "first tokens": Rule(f"at most the first {FIRST} tokens", first_tokens(FIRST, VOCAB)),
}
NESTED = {  # those that need brackets
    "own digits, no median": Rule(f"{OWN}; of a median the operator alone", by_key(_no_median)),
    "own digits": Rule(OWN, by_key(own_digits)),
}
