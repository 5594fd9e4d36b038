"""The alphabet: ids, the two written forms, values."""

from __future__ import annotations

import numpy as np
import pytest

from lra.data.listops import tokens

EXAMPLE = "( ( ( [MAX 1 ) 2 ) ] )"  # the maximum of 1 and 2, as the official files write it
OPERATORS = {
    "[MAX": max,
    "[MIN": min,
    "[MED": lambda values: int(np.median(values)),
    "[SM": lambda values: sum(values) % 10,
}


def evaluate(text: str) -> int:
    """Not the product's way: by recursion, on the words of the bracket form."""
    words = iter(text.split())

    def read(word: str) -> int:
        if word not in OPERATORS:
            return int(word)
        return OPERATORS[word]([read(argument) for argument in iter(lambda: next(words), "]")])

    value = read(next(words))
    assert not list(words)
    return value


def test_vocabulary_is_fixed() -> None:
    digits = {str(d): d + 1 for d in range(10)}
    assert digits | {"[MAX": 11, "[MED": 12, "[MIN": 13, "[SM": 14, "]": 15} == tokens.ID
    assert list(tokens.ID) == sorted(tokens.ID)
    assert (tokens.UNKNOWN, tokens.VOCAB, tokens.VERSION) == (16, 17, "listops-v1")


def test_both_forms_have_the_same_ids() -> None:
    ids = [11, 2, 3, 15]
    assert tokens.encode(EXAMPLE).tolist() == tokens.encode("[MAX 1 2 ]").tolist() == ids
    assert tokens.decode(np.array(ids)) == "[MAX 1 2 ]"


@pytest.mark.parametrize("symbol", ["[FIRST", "12", "X", "-1", "max", "[max", "[", "1]"])
def test_unknown_symbols_are_never_dropped(symbol: str) -> None:
    with pytest.raises(ValueError, match="unknown symbol") as error:
        tokens.encode(f"[MAX 1 {symbol} ]")
    assert repr(symbol) in str(error.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "empty"),
        ("[MAX 1 2", "1 brackets are never closed"),
        ("[MAX [MIN 1 2", "2 brackets are never closed"),
        ("1 2", "goes on after"),
        ("[MAX 1 2 ] 3", "goes on after"),
        ("[MAX 1 ] ]", "goes on after"),
        ("] [MAX", "goes on after"),
        ("[MAX ]", "no arguments"),
        ("[MAX 1 [MIN ] 2 ]", "no arguments"),
    ],
)
def test_faulty_brackets(text: str, complaint: str) -> None:
    assert complaint in str(tokens.fault(tokens.encode(text)))
