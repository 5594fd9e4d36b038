"""The generator: its distribution against theory, against a recursion and against the statistics
of the official functions; its values against an independent evaluator."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest

from lra.base.errors import UserError
from lra.data.listops import generator, tokens
from lra.data.listops.generator import TreeShape, accept, block, generate, grow
from tests.lra.data.listops.test_tokens import evaluate

OFFICIAL = TreeShape(min_length=500, max_length=2000, max_depth=10, max_args=10, p_leaf=0.75)
SHORT = TreeShape(min_length=3, max_length=40, max_depth=4, max_args=5, p_leaf=0.5)


@pytest.fixture(scope="module")
def raw() -> list[list[generator.Level]]:
    """Raw trees, 74,000 of them, by block."""
    rng = np.random.default_rng(3)
    return [grow(rng, OFFICIAL.block_trees(), OFFICIAL) for _ in range(8)]


@pytest.fixture(scope="module")
def accepted(raw: list[list[generator.Level]]) -> tuple[list[list[generator.Level]], np.ndarray]:
    kept = [accept(levels, OFFICIAL) for levels in raw]
    return kept, np.concatenate([levels[0].length for levels in kept])


@pytest.fixture(scope="module")
def expressions() -> list[tuple[np.ndarray, int]]:
    return [e for number in range(7) for e in block(number, OFFICIAL, seed=1).expressions()]


# ---------------------------------------------------------------------- raw trees


# ---------------------------------------------------------------------- accepted trees


def test_lengths_of_accepted_trees(accepted: tuple) -> None:
    _, length = accepted
    assert len(length) > 5500
    errors = 1 / len(length) + 1 / 4000  # ours and that of the reference sample
    assert abs(length.mean() - 1038) < 4 * 396 * errors**0.5
    assert abs(length.std() - 396) < 4 * 396 * (errors / 2) ** 0.5
    for percent, expected, density in (
        (5, 533, 1.5e-3),
        (25, 700, 1.06e-3),
        (50, 961, 7.5e-4),
        (75, 1313, 5.5e-4),
        (95, 1797, 2.4e-4),
    ):
        q = percent / 100
        tolerance = 4 * (q * (1 - q) * errors) ** 0.5 / density
        assert abs(np.percentile(length, percent) - expected) < tolerance


def test_labels_of_accepted_trees(expressions: list) -> None:
    labels = np.bincount([value for _, value in expressions], minlength=10) / len(expressions)
    errors = (1 / len(expressions) + 1 / 4000) ** 0.5
    assert abs(labels[0] - 0.175) < 4 * 0.38 * errors
    assert abs(labels[9] - 0.163) < 4 * 0.37 * errors
    slack = 4 * (0.08 * 0.92 / len(expressions)) ** 0.5
    assert 0.068 - slack < labels[1:9].min() < labels[1:9].max() < 0.094 + slack


# ---------------------------------------------------------------------- expressions


def test_values_and_form(expressions: list) -> None:
    short = itertools.islice(generate(SHORT, seed=0), 1000)
    for ids, value in [*expressions[:150], *short]:
        text = tokens.decode(ids)
        assert tokens.encode(text).tolist() == ids.tolist()
        assert tokens.fault(ids) is None
        assert value == evaluate(text)


def test_both_length_bounds_are_strict() -> None:
    lengths = {len(ids) for ids, _ in itertools.islice(generate(SHORT, seed=0), 3000)}
    assert lengths == set(range(4, 40))


def test_no_expression_comes_twice() -> None:
    few = TreeShape(min_length=0, max_length=6, max_depth=3, max_args=3, p_leaf=0.5)
    found = [tuple(ids) for ids, _ in itertools.islice(generate(few, seed=0), 3000)]
    assert len(set(found)) == 3000


def test_impossible_wishes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "FRUITLESS_BLOCKS", 2)
    monkeypatch.setattr(generator, "NODES_PER_BLOCK", 1000)
    digits = TreeShape(min_length=0, max_length=2, max_depth=3, max_args=3, p_leaf=0.5)
    found = generate(digits, seed=0)
    assert sorted(int(ids[0]) for ids, _ in itertools.islice(found, 10)) == list(tokens.DIGITS)
    with pytest.raises(UserError, match="beyond 10 others"):
        next(found)
    never = TreeShape(min_length=500, max_length=502, max_depth=1, max_args=3, p_leaf=0.5)
    with pytest.raises(UserError, match="beyond 0 others"):
        next(generate(never, seed=0))


def test_workers_change_nothing() -> None:
    """Some blocks more than one, so that results arrive out of order."""

    def first(workers: int) -> list[tuple[bytes, int]]:
        found = generate(OFFICIAL, seed=5, workers=workers)
        return [(ids.tobytes(), value) for ids, value in itertools.islice(found, 3000)]

    one = first(1)
    assert first(2) == one
    assert len({ids for ids, _ in one}) == 3000


def test_the_stream_of_seed_0_has_not_changed() -> None:
    """When this fails, other data come of the same seed: change generator.VERSION and the
    statistics in lra/data/expected."""
    digest = hashlib.sha256()
    for ids, value in itertools.islice(generate(OFFICIAL, seed=0), 500):
        digest.update(ids.tobytes() + bytes([value]))
    assert generator.VERSION == "listops-generator-1"
    assert digest.hexdigest() == "7327c5f1ecddb61f6dc478cbdc3bd1152ddd6594dde7da46a6cf16df2cf075cb"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"p_leaf": 1.0}, "p_leaf=1.0 is out of range"),
        ({"max_args": 1}, "max_args=1 is out of range"),
        ({"max_args": 26}, "max_args=26 is out of range"),
        ({"max_depth": 0}, "max_depth=0 is out of range"),
        ({"min_length": -1}, "min_length=-1 is out of range"),
        ({"max_length": 501}, "max_length=501 is out of range: it must be at least 502"),
        ({"max_depth": 40}, "nodes on average"),
    ],
)
def test_ranges(options: dict, complaint: str) -> None:
    with pytest.raises(UserError) as error:
        TreeShape(**(vars(OFFICIAL) | options))
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    "ends",
    [
        {"p_leaf": 0.0, "max_args": 2, "min_length": 0},
        {"max_args": 25, "max_depth": 1, "max_length": 502},
    ],
    ids=str,
)
def test_the_ends_of_the_ranges_are_allowed(ends: dict) -> None:
    shape = TreeShape(**(vars(OFFICIAL) | {"max_depth": 2} | ends))
    assert vars(shape).items() >= ends.items()
