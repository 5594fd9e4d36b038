"""Rules for ListOps (lra/data/rules.py): those of its first and last tokens and of its counts, and
those that follow brackets, to the root's own digits or to those of one or two of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lra.data.arrays import Split
from lra.data.listops.tokens import CLOSE, DIGITS, MAX, MED, MIN, OPENING, VOCAB
from lra.data.nonlinear import READ, by_boosting, tally
from lra.data.rules import Rule, Table, accuracy, by_key, first_tokens, last_tokens

FIRST = 6  # tokens that the table of first tokens reads at most
LAST = 12  # of last tokens, of which many are closing brackets
NONE = 10  # in place of a result, where there are no digits
CODES = 11 * VOCAB  # of an operator and a result
FEW = 6  # operators of a kind; more of them count as so many


def depths(ids: np.ndarray) -> np.ndarray:
    """How many operators are open after each token: (B, N)."""
    opens = (ids >= OPENING[0]) & (ids <= OPENING[-1])
    return np.cumsum(opens.astype(np.int16) - (ids == CLOSE), axis=1)


def nesting(ids: np.ndarray) -> np.ndarray:
    """The greatest number of operators that are open at once: (B,). 0 is a digit alone."""
    return depths(ids).max(axis=1)


def results(operator: np.ndarray, digits: np.ndarray) -> np.ndarray:
    """What each operator gives for digits that occur so often (B, 10); NONE where there are none.
    The sum where it is no other operator."""
    n, upto = digits.sum(axis=1), digits.cumsum(axis=1)
    low, high = ((upto > at[:, None]).argmax(axis=1) for at in ((n - 1) // 2, n // 2))
    of_each = {
        MAX: 9 - (digits[:, ::-1] > 0).argmax(axis=1),
        MIN: (digits > 0).argmax(axis=1),
        MED: (low + high) // 2,
    }
    total = digits @ np.arange(10) % 10
    result = np.select([operator == name for name in of_each], list(of_each.values()), total)
    return np.where(n > 0, result, NONE)


def own_digits(ids: np.ndarray) -> np.ndarray:
    """The operator, and what it gives for its own digits."""
    operator = ids[:, 0].astype(np.int64)
    is_own = depths(ids) == (operator >= OPENING[0])[:, None]
    digits = np.stack([((ids == digit) & is_own).sum(axis=1) for digit in DIGITS], axis=1)
    return operator * 11 + results(operator, digits)


def _no_median(ids: np.ndarray) -> np.ndarray:
    operator = ids[:, 0].astype(np.int64)
    return np.where(operator == MED, MED * 11, own_digits(ids))


# ---------------------------------------------------------------------- arguments


def arguments(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Code each argument of the root by its operator and what this gives for its own digits, a
    digit by itself: (B, most arguments), and how many there are (B,)."""
    is_digit = (ids >= DIGITS[0]) & (ids <= DIGITS[-1])
    is_operator = (ids >= OPENING[0]) & (ids <= OPENING[-1])
    depth = depths(ids)
    starts = (is_digit & (depth == 1)) | (is_operator & (depth == 2))
    which = np.cumsum(starts, axis=1) - 1
    count = which[:, -1] + 1
    most = max(1, int(count.max()))

    row, column = np.nonzero(starts)
    operators = np.zeros((len(ids), most), np.int64)
    operators[row, which[row, column]] = np.where(is_operator, ids, 0)[row, column]
    row, column = np.nonzero(is_digit & (depth <= 2) & (depth >= 1))  # own digits of arguments
    place = (row * most + which[row, column]) * 10 + ids[row, column] - DIGITS[0]
    digits = np.bincount(place, minlength=len(ids) * most * 10).reshape(-1, 10)
    codes = operators.ravel() * 11 + results(operators.ravel(), digits)
    return codes.reshape(-1, most), count


def _argument(ids: np.ndarray, *numbers: int) -> np.ndarray:
    """The root's operator with the codes of these arguments, of which -1 is the last one."""
    codes, count = arguments(ids)
    key = ids[:, 0].astype(np.int64)
    for number in numbers:
        at = np.where(number < 0, count + number, number)
        there = (at >= 0) & (at < count)
        code = codes[np.arange(len(ids)), np.where(there, at, 0)]
        key = key * CODES + np.where(there, code, NONE)
    return key


def _best_argument(train: Split, val: Split, splits: list[Split]) -> list[np.ndarray]:
    """Answer by the one argument, counted from either end, that is best on val."""
    everything = [train, val, *splits]
    blocks = [[ids for ids, _ in split.blocks()] for split in everything]
    most = max(int(arguments(ids)[1].max()) for ids in blocks[1])
    best, answers = -1.0, list[np.ndarray]()
    for number in sorted(range(-most, most), key=lambda n: (n if n >= 0 else -n - 1, n < 0)):
        keys = [np.concatenate([_argument(ids, number) for ids in of]) for of in blocks]
        table = Table(keys[0], train.labels)
        given = [table.answers(key)[0] for key in keys[1:]]
        if (score := accuracy(val, given[0])) > best:
            best, answers = score, given[1:]
    return answers


# ---------------------------------------------------------------------- counts


def _digits_of(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How often each digit (B, 10) and each operator (B, 4) occurs."""
    counts = tally(ids, VOCAB)
    return counts[:, DIGITS[0] : DIGITS[-1] + 1], counts[:, OPENING[0] : OPENING[-1] + 1]


def _usual_operator(ids: np.ndarray) -> np.ndarray:
    """How often each operator occurs, and what the most frequent one gives for all digits."""
    digits, operators = _digits_of(ids)
    key = results(OPENING[0] + operators.argmax(axis=1), digits)
    for column in operators.T:
        key = key * (FEW + 1) + np.minimum(column, FEW)
    return key


def _extremes(split: Split) -> np.ndarray:
    """How often each token occurs; maximum, median, minimum and sum of all digits."""
    parts = []
    for start in range(0, len(split), READ):
        ids = split.ids(np.arange(start, min(start + READ, len(split))))
        digits, _ = _digits_of(ids)
        all_of = [results(np.full(len(ids), name), digits) for name in OPENING]
        total = digits @ np.arange(10)
        parts.append(np.column_stack([tally(ids, VOCAB)[:, 1:], *all_of, total]))
    return np.concatenate(parts)


def _at(*numbers: int) -> Callable[..., Any]:
    return by_key(lambda ids: _argument(ids, *numbers))


OWN = "the first operator and the digits that are its own arguments"
ALSO = "the first operator; operator and own digits of its"
FLAT = {
    "counts and extremes": Rule(
        "how often each token occurs, and max, median, min and sum of all digits (gradient "
        "boosting)",
        by_boosting(_extremes),
    ),
    "usual operator": Rule(
        "how often each operator occurs, and what the most frequent one gives for all digits",
        by_key(_usual_operator),
    ),
    "first operator": Rule("the first token alone", by_key(lambda ids: ids[:, 0])),
    "first tokens": Rule(f"at most the first {FIRST} tokens", first_tokens(FIRST, VOCAB)),
    "last tokens": Rule(f"at most the last {LAST} tokens", last_tokens(LAST, VOCAB)),
}
NESTED = {  # those that need brackets
    "own digits, no median": Rule(f"{OWN}; of a median the operator alone", by_key(_no_median)),
    "own digits": Rule(OWN, by_key(own_digits)),
    "first argument": Rule(f"{ALSO} first argument", _at(0)),
    "last argument": Rule(f"{ALSO} last argument", _at(-1)),
    "one argument": Rule(f"{ALSO} argument that says most", _best_argument),
    "both ends": Rule(f"{ALSO} first and its last argument", _at(0, -1)),
}
