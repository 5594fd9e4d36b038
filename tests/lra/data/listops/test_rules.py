"""Rules that answer without reading nested expressions, and data on which none of them helps."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lra.data
from lra.base.errors import UserError
from lra.data import hunt, registry, rules
from lra.data.listops import balanced, generator, tokens
from lra.data.listops.rules import NONE, arguments, nesting, own_digits
from lra.data.prepare import prepare
from lra.data.rules import CONSTANT, baselines, first_tokens, keep, last_tokens, read_scores

SHORT = ["n_val=500", "n_test=1000", "max_args=4", "max_depth=4", "min_length=4", "max_length=60"]


def scores(words: list[str], data_dir: Path, *names: str) -> dict[str, float]:
    options = lra.data.configure("listops", [*SHORT, *words])
    prepared = prepare(options, max_length=64, data_dir=data_dir, workers=1)
    scored = baselines(prepared, registry.get("listops"), [*names])["rules"]
    return {name: score["test"] for name, score in scored.items()}


def padded(*expressions: str) -> np.ndarray:
    ids = np.zeros((len(expressions), 30), np.uint8)
    for row, text in zip(ids, expressions, strict=True):
        encoded = tokens.encode(text)
        row[: len(encoded)] = encoded
    return ids


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),
        ("[MIN 2 9 [MIN 0 7 ] 3 ]", 2),
        ("[SM 8 [SM 9 9 ] 7 ]", 5),
        ("[MED 1 [MAX 9 9 ] 4 8 3 ]", 3),  # of 1 3 4 8: (3 + 4) // 2
        ("[MED 1 [MAX 9 9 ] 4 8 ]", 4),
        ("[MAX [MIN 4 7 ] [SM 1 2 ] ]", 10),  # none of its own
    ],
)
def test_own_digits_are_those_of_the_root(expression: str, result: int) -> None:
    ids = padded(expression)
    operator = int(ids[0, 0])
    assert own_digits(ids)[0] == operator * 11 + result


def test_arguments_are_read_with_their_own_digits_alone() -> None:
    ids = padded("[MAX 2 [MIN 4 7 [SM 9 9 ] ] [SM [MAX 1 1 ] ] 0 ]", "[SM [MED 3 8 ] 5 ]", "7")
    codes, count = arguments(ids)
    assert count.tolist() == [4, 2, 0]
    assert codes[0].tolist() == [2, tokens.MIN * 11 + 4, tokens.SM * 11 + NONE, 0]
    assert codes[1, :2].tolist() == [tokens.MED * 11 + 5, 5]


def test_nesting_counts_open_operators() -> None:
    ids = padded("[MAX 1 2 ]", "[MAX [MIN 3 [SM 1 1 ] ] 2 ]", "7")
    assert nesting(ids).tolist() == [1, 3, 0]


def test_plain_listops_is_read_without_recursion(tmp_path: Path) -> None:
    ends = ("first operator", "last argument", "both ends", "own digits", "own digits, no median")
    score = scores(["n_train=8000"], tmp_path, CONSTANT, "bag", "usual operator", *ends)
    assert score[CONSTANT] < 15 < score["first operator"] < score["own digits"]
    assert score["own digits, no median"] < score["own digits"]
    assert score["own digits"] > 45
    assert score["bag"] < score["usual operator"]  # which no linear model of counts is
    assert score["first operator"] < score["last argument"] < score["both ends"]


def test_balanced_listops_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balanced, "COUNTED", 500_000)
    arguments = ("first argument", "last argument", "one argument", "both ends")
    beginning = ("first operator", "first tokens", "own digits")
    score = scores(["n_train=8000", "balanced=true"], tmp_path, *beginning, *arguments)
    # 1,000 examples: three standard errors are 2.8 points
    assert max(score[name] for name in ("first operator", "own digits")) < 13
    assert score["first tokens"] < 18
    # but its end is not balanced
    assert score["first argument"] < score["last argument"] > 18
    assert score["one argument"] >= score["last argument"] - 3  # it finds that on dev


def test_balanced_data_do_not_depend_on_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balanced, "COUNTED", 100_000)
    shape = generator.TreeShape(4, 60, 4, 4, 0.75, nested=True)
    one = balanced.odds(shape, seed=3, workers=1)
    two = balanced.odds(shape, seed=3, workers=2)
    assert np.array_equal(one.accepted, two.accepted)
    assert np.array_equal(one.keys, two.keys)


@pytest.mark.rest
def test_what_counts_give_is_more_than_a_linear_model_of_them(tmp_path: Path) -> None:
    score = scores(["n_train=8000"], tmp_path, "bag", "counts and extremes")
    assert score["bag"] + 3 < score["counts and extremes"]


def test_odds_make_labels_uniform_and_operators_equal() -> None:
    rng = np.random.default_rng(0)
    place = tokens.VOCAB ** (balanced.TOKENS - 1)
    roots = rng.choice(generator.OPERATORS, 200_000, p=[0.1, 0.2, 0.3, 0.4]).astype(np.int64)
    labels = np.minimum(rng.geometric(0.2, len(roots)) - 1, 9)
    odds = balanced.count(roots * place, labels)
    chance = odds.accepted[np.searchsorted(odds.keys, roots * place), labels]
    taken = rng.random(len(roots)) < chance
    shares = np.bincount(labels[taken]) / taken.sum()
    assert np.abs(shares - 0.1).max() < 0.01
    assert np.abs(np.bincount(roots[taken])[tokens.MAX :] / taken.sum() - 0.25).max() < 0.01


def test_released_files_cannot_be_balanced() -> None:
    with pytest.raises(UserError, match="balanced is read by source=generated only"):
        lra.data.configure("listops", ["source=release", "balanced=true"])


def test_an_unbalanced_preparation_keeps_its_name() -> None:
    task = registry.get("listops")
    assert "balanced" not in task.matters(lra.data.configure("listops"))


def test_a_rule_that_a_task_lacks_is_refused(tmp_path: Path) -> None:
    options = lra.data.configure("listops", ["source=tiny"])
    prepared = prepare(options, max_length=64, data_dir=tmp_path)
    with pytest.raises(UserError, match="no rule 'first operater'; did you mean first operator"):
        baselines(prepared, registry.get("listops"), ["first operater"])


def test_scores_are_kept_once_per_data(tmp_path: Path) -> None:
    first = {"task": "listops", "fingerprint": "a", "metric": {}, "rules": {}}
    one, other = ({**first, "rules": {rule: {}}} for rule in ("constant", "bag"))
    for scored in (one, {**first, "fingerprint": "b"}, other):
        keep(scored, tmp_path / "rules.jsonl")
    lines = read_scores(tmp_path / "rules.jsonl")
    assert [line["fingerprint"] for line in lines] == ["a", "b"]
    assert lines[0]["rules"] == {"constant": {}, "bag": {}}  # of one data, in two commands


def keep_one(module: Any, path: Path, number: int, start: Any) -> None:
    start.wait()
    module.keep({"task": "t", "fingerprint": str(number), "metric": {}, "rules": {}}, path)


@pytest.mark.parametrize("module", [rules, hunt])
def test_two_that_write_at_once_lose_nothing(module: Any, tmp_path: Path) -> None:
    path, context = tmp_path / "kept.jsonl", multiprocessing.get_context("fork")
    start = context.Barrier(6)
    jobs = [context.Process(target=keep_one, args=(module, path, i, start)) for i in range(6)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert [job.exitcode for job in jobs] == [0] * 6
    read = rules.read_scores if module is rules else hunt.read_hunts
    assert [line["fingerprint"] for line in read(path)] == [*"012345"]


def test_rules_of_inputs_shorter_than_six_tokens(tmp_path: Path) -> None:
    short = prepare(lra.data.configure("listops", ["source=tiny"]), max_length=4, data_dir=tmp_path)
    scored = baselines(short, registry.get("listops"), ["first tokens"])["rules"]
    assert 0 <= scored["first tokens"]["test"] <= 100


def test_last_tokens_are_those_before_padding(tmp_path: Path) -> None:
    """The last token but one is the label, whatever the length."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(1, 10, rng.integers(4, 12)) for _ in range(600)]
    parts = {"train": rows[:400], "val": rows[400:500], "test": rows[500:]}
    given = {name: (part, [int(row[-2]) for row in part]) for name, part in parts.items()}
    lra.data.from_arrays("ending", **given)
    prepared = prepare(lra.data.configure("ending"), max_length=12, data_dir=tmp_path)
    answer = last_tokens(3, 10)
    splits = [prepared.split(name) for name in ("train", "val", "test")]
    assert np.array_equal(answer(*splits[:2], splits[2:])[0], splits[2].labels)
    assert (first_tokens(3, 10)(*splits[:2], splits[2:])[0] == splits[2].labels).mean() < 0.5


def test_recall_is_not_answered_by_frequency(tmp_path: Path) -> None:
    options = lra.data.configure("recall", ["pairs=8", "n_train=500", "n_val=100", "n_test=400"])
    prepared = prepare(options, max_length=0, data_dir=tmp_path)
    task = registry.of_facts(prepared.facts)
    rules = baselines(prepared, task)["rules"]
    assert list(rules) == [CONSTANT, "most frequent value"]
    assert rules[CONSTANT]["test"] < 4 < 100 / 8 < rules["most frequent value"]["test"] < 25
