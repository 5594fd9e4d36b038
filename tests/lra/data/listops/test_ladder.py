"""Readers of the first levels of an expression: probabilities against all cases and against draws,
and what is kept of them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lra.data
from lra.cli import main
from lra.data import registry
from lra.data.listops import ladder
from lra.data.listops.generator import TreeShape, apply, generate
from lra.data.listops.tokens import CLOSE, MAX, MED, MIN, OPENING, decode, encode
from lra.data.prepare import prepare
from lra.data.rules import baselines, keep, read_scores
from lra.report.rules import read_rules
from tests.lra.data.listops.plain import Plain, parse

SHAPE = TreeShape(min_length=4, max_length=60, max_depth=4, max_args=4, p_leaf=0.75)
SHORT = ["min_length=4", "max_length=60", "max_depth=4", "max_args=4"]
SIZES = ["n_train=300", "n_val=100", "n_test=400"]


def block(*texts: str) -> np.ndarray:
    (ids,) = ladder.blocks_of([encode(text) for text in texts])
    return ids


@pytest.mark.parametrize("operator", OPENING)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_an_operator_of_uncertain_arguments_has_the_value_of_all_cases(operator: int, n: int):
    arguments = np.random.default_rng(n).dirichlet(np.full(10, 0.3), (3, n))
    cases = np.array(list(itertools.product(range(10), repeat=n)))
    values = apply(
        np.full(len(cases), operator), cases.ravel().astype(np.uint8), np.full(len(cases), n)
    )
    for row, found in zip(arguments, ladder.result(operator, arguments), strict=True):
        odds = np.prod([row[i, cases[:, i]] for i in range(n)], axis=0)
        np.testing.assert_allclose(found, np.bincount(values, odds, 10), atol=1e-12)


def test_a_median_of_many_is_the_same_in_parts(monkeypatch: pytest.MonkeyPatch):
    arguments = np.random.default_rng(0).dirichlet(np.full(10, 0.3), (40, 9))
    whole = ladder.result(MED, arguments)
    monkeypatch.setattr(ladder, "AT_ONCE", 1)
    np.testing.assert_allclose(ladder.result(MED, arguments), whole, atol=1e-12)


def test_what_is_read_is_known_and_what_is_not_is_as_it_is_drawn():
    texts = ("[MAX 2 9 [MIN 4 7 ] ]", "[MIN 3 [SM 1 1 ] [MAX 5 [MED 0 0 ] ] ]", "7")
    deep = ladder.distributions(block(*texts), SHAPE, 3)
    np.testing.assert_allclose(deep, np.eye(10)[[9, 2, 7]], atol=1e-12)
    one = ladder.distributions(block(*texts), SHAPE, 1)
    assert one[0, 9] == pytest.approx(1)  # a maximum that has a 9
    assert one[1, 4:] == pytest.approx(0)
    assert one[1, 2] < 0.5
    assert one[2, 7] == 1
    # An operator of the deepest level has digits alone; its maximum of 2, 3 or 4 of them.
    lowest = ladder.distributions(block("[MAX 0 [SM 0 [MAX 0 0 ] ] ]"), SHAPE, 2, operators=True)
    nine = np.mean([1 - 0.9**n for n in (2, 3, 4)])
    assert lowest[0, 9] == pytest.approx(nine)


def test_it_does_not_depend_on_what_is_not_read():
    before = "[MED 1 [MAX 2 [SM 3 4 ] ] 8 ]"
    for depth, operators, same, other in (
        (1, False, "[MED 1 [MIN 9 9 ] 8 ]", "[MED 1 [MAX 2 [SM 3 4 ] ] 7 ]"),
        (1, True, "[MED 1 [MAX 9 9 ] 8 ]", "[MED 1 [SM 2 [SM 3 4 ] ] 8 ]"),
        (2, False, "[MED 1 [MAX 2 [MIN 9 9 9 ] ] 8 ]", "[MED 1 [MAX 5 [SM 3 4 ] ] 8 ]"),
    ):
        known = ladder.distributions(block(before, same, other), SHAPE, depth, operators=operators)
        np.testing.assert_array_equal(known[0], known[1])
        assert not np.allclose(known[0], known[2])


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("operators", [False, True])
def test_a_plain_program_that_draws_finds_the_same(depth: int, operators: bool):
    draws, plain = 1500, Plain(SHAPE.max_depth, SHAPE.max_args, SHAPE.p_leaf)
    texts = [decode(ids) for ids, _ in itertools.islice(generate(SHAPE, seed=3), 40)]
    known = ladder.distributions(block(*texts), SHAPE, depth, operators=operators)
    for text, exact in zip(texts, known, strict=True):
        counts = plain.values(parse(text), depth, operators, draws)
        share = np.array([counts[value] for value in range(10)]) / draws
        error = np.sqrt(abs(exact * (1 - exact)) / draws) + 0.003  # its pool has an error, too
        assert (abs(share - exact) < 5 * error).all(), text


def test_more_that_is_read_scores_more_and_decides_no_mark(tmp_path: Path):
    options = lra.data.configure("listops", [*SHORT, *SIZES])
    made = prepare(options, max_length=60, data_dir=tmp_path, workers=1)
    task = registry.of_facts(made.facts)
    names = ["constant", *task.readers(made.facts["options"])]
    scores = baselines(made, task, names)
    assert [*scores["rules"]] == ["constant"]
    assert [*scores["readers"]] == names[1:]
    on_test = [score["test"] for score in scores["readers"].values()]
    assert on_test == sorted(on_test)
    assert on_test[0] < 75 < on_test[2] < 100 == on_test[4]
    rungs = scores["rungs"]
    assert rungs["names"] == ["depth 1", "depth 2", "depth 3", "depth 4", "deeper"]
    assert len(rungs["test"]) == 400
    assert {*rungs["test"]} == {"0", "1", "2"}
    assert [*rungs["rules"]] == ["constant", "first tokens"]
    # Flat expressions are known at depth 1.
    test = made.split("test")
    ids = test.ids(np.arange(400))
    flat = (ids == CLOSE).sum(axis=1) == 1
    assert {rung for rung, of in zip(rungs["test"], flat, strict=True) if of} == {"0"}


def test_kept_rules_stay_when_readers_are_added(tmp_path: Path, capsys: Any):
    file, words = tmp_path / "rules.jsonl", ["data", "baseline", "listops", *SHORT, *SIZES]
    words += ["--data-dir", str(tmp_path), "--to", str(file), "--rule"]
    assert main([*words, "constant", "own digits"]) == 0
    (before,) = read_scores(file)
    assert "readers" not in before
    assert main([*words, "depth 1", "depth 2 and operators"]) == 0
    assert "Readers of a part" in capsys.readouterr().out
    (line,) = read_rules(tmp_path)
    assert line["rules"] == before["rules"]
    assert line["missing"] == before["missing"]
    assert [*line["readers"]] == ["depth 1", "depth 2 and operators"]
    keep(before, file)
    assert read_rules(tmp_path) == [line]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"test": "0120"}, "the counts of 'constant' are not those of its rungs"),
        ({"test": "0127"}, "an example has none of the 3 rungs"),
        ({"rules": {"constant": [[2, 1], [0, 2], [0, 1]]}}, "are not those of its rungs"),
    ],
)
def test_impossible_rungs_are_refused(change: dict[str, Any], why: str):
    from pydantic import ValidationError

    from lra.report.rules import Rungs

    fine = {
        "names": ["a", "b", "c"],
        "test": "0121",
        "rules": {"constant": [[1, 1], [0, 2], [0, 1]]},
    }
    Rungs.model_validate(fine)
    with pytest.raises(ValidationError, match=why):
        Rungs.model_validate(fine | change)


def test_without_brackets_the_same_expressions_are_read_with_them(tmp_path: Path):
    made = {}
    for brackets in ("keep", "drop"):
        words = [*SHORT, *SIZES, f"brackets={brackets}"]
        options = lra.data.configure("listops", words)
        prepared = prepare(options, max_length=60, data_dir=tmp_path, workers=1)
        made[brackets] = baselines(
            prepared, registry.of_facts(prepared.facts), ["depth 1", "depth 2"]
        )
    for name, score in made["keep"]["readers"].items():
        assert score == made["drop"]["readers"][name] | {"by": score["by"]}
    assert made["keep"]["rungs"]["test"] == made["drop"]["rungs"]["test"]


def test_balanced_labels_are_as_likely_after_each_first_operator():
    known = np.array([[0.7, 0.3], [0.6, 0.4], [0.9, 0.1]]) @ np.eye(2, 10)
    known = 0.99 * known + 0.001
    first = np.array([MAX, MAX, MIN])
    weights = ladder._balance(first, known)
    weighed = ladder._weighed(first, known, weights)
    np.testing.assert_allclose(weighed.sum(axis=1), 1)
    np.testing.assert_allclose(weighed[:2].mean(axis=0), 0.1, atol=1e-3)
    assert weighed[0, 0] > weighed[1, 0]
