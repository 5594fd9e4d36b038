"""The alphabet of ListOps: ids, text and value of an expression.

The official vocabulary is a set in hash order, different in every process; this one is sorted and
fixed.
"""

from __future__ import annotations

import numpy as np

VERSION = "listops-v1"  # stored with prepared data; change it when an id changes its meaning
# Sorted; id = position + 1, 0 is padding.
TOKENS = (*"0123456789", "[MAX", "[MED", "[MIN", "[SM", "]")
UNKNOWN = len(TOKENS) + 1  # reserved, as in the official encoder; nothing here ever writes it
VOCAB = UNKNOWN + 1
ID = {token: position + 1 for position, token in enumerate(TOKENS)}
DIGITS = range(ID["0"], ID["9"] + 1)
MAX, MED, MIN, SM, CLOSE = (ID[token] for token in ("[MAX", "[MED", "[MIN", "[SM", "]"))
OPENING = range(MAX, SM + 1)


def encode(source: str) -> np.ndarray:
    """Encode an expression in either form: parentheses carry nothing and are dropped, anything
    else that is not in the vocabulary is a ValueError that names the symbol."""
    symbols = source.replace("(", "").replace(")", "").split()
    try:
        return np.fromiter(map(ID.__getitem__, symbols), np.uint8, len(symbols))
    except KeyError as error:
        raise ValueError(f"unknown symbol {error.args[0][:40]!r}") from None


def decode(ids: np.ndarray) -> str:
    """Write the bracket form: `[MAX 2 9 [MIN 4 7 ] 0 ]`."""
    return " ".join("?" if i == UNKNOWN else TOKENS[i - 1] for i in ids.tolist())


def fault(ids: np.ndarray) -> str | None:
    """Say what is wrong with the brackets, or None. An expression is one digit, or an operator that
    closes with the last token."""
    if not len(ids):
        return "it is empty"
    opens, closes = (ids >= OPENING[0]) & (ids <= OPENING[-1]), ids == CLOSE
    depth = np.cumsum(opens.astype(np.int32) - closes.astype(np.int32))
    if depth[-1] > 0:
        return f"{depth[-1]} brackets are never closed"
    if depth[-1] < 0 or (depth[:-1] < 1).any():
        return "it goes on after its last bracket"
    if (opens[:-1] & closes[1:]).any():
        return "an operator has no arguments"
    return None
