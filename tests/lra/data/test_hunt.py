"""The hunter finds what was planted, and nothing where there is nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lra.data
from lra.base.digests import digest
from lra.base.errors import UserError
from lra.cli import main
from lra.data import registry
from lra.data.hunt import BY_QUESTION, _wilson, attempts_of, hunt, keep, read_hunts
from lra.data.prepare import prepare
from lra.data.views import Asked, asked, columns, views_of
from lra.data.words import hunted


def rows(n: int = 1500, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 11, rng.integers(12, 21)) for _ in range(n)]


def hunts(data_dir: Path, labels: Any, ids: Any = None, **options: Any) -> dict[str, Any]:
    """Hunt in arrays; val and test are drawn from them."""
    lra.data.from_arrays("planted", (rows() if ids is None else ids, labels), **options)
    made = prepare(lra.data.configure("planted"), max_length=32, data_dir=data_dir)
    return hunt(made, registry.of_facts(made.facts), minutes=10)


def test_parity_of_a_token_counted_from_the_end_is_found(tmp_path: Path) -> None:
    found = hunts(tmp_path, [int(row[-5] % 2) for row in rows()])
    assert found["found"]
    assert found["best"] == {"how": "table", "reads": "token 5 from the end", "val": 100.0}
    assert (found["test"], found["perfect"]) == (100.0, True)
    assert "a table that reads token 5 from the end has accuracy 100.00 %" in "".join(hunted(found))


def test_two_tokens_together_are_found(tmp_path: Path) -> None:
    found = hunts(tmp_path, [int((row[-2] + row[1]) % 2) for row in rows()])
    assert found["best"]["reads"] == "token 2 and token 2 from the end"
    assert found["test"] == 100


def test_nothing_is_found_in_random_labels(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("lra.data.rounds.STEPS", 150)  # of each network
    for name in ("ROUNDS", "MORE"):
        monkeypatch.setattr(f"lra.data.rounds.{name}", 5)
    labels = np.random.default_rng(1).integers(0, 4, 3000).tolist()
    found = hunts(tmp_path, labels, rows(3000))
    assert found["left"] == 0
    assert len({one["how"] for one in found["tried"]}) == 5
    assert not found["found"]
    assert found["low"] < 25 < found["high"]
    assert "No shortcut was found" in "\n".join(hunted(found))


def test_counts_are_found_by_votes_and_trees(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("lra.data.rounds.STEPS", 450)
    found = hunts(tmp_path, [int((row == 3).sum() > (row == 7).sum()) for row in rows()])
    assert found["best"]["reads"] == "how often each token occurs"
    assert found["test"] > 95


@pytest.mark.parametrize(
    ("label", "options", "reads", "least"),
    [
        (lambda row: float(row[-3]), {}, "token 3 from the end", 0.99),
        (lambda row: [int(row[0] > 3), int(row[1] > 8)], {"targets": "labels"}, "token 1", 0.8),
    ],
)
def test_numbers_and_labels(
    label: Any, options: Any, reads: str, least: float, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(
        "lra.data.hunt.attempts_of", lambda problem: [*attempts_of(problem)][:3]
    )  # those of tables
    found = hunts(tmp_path, [label(row) for row in rows()], **options)
    assert found["found"]
    assert found["best"]["reads"].startswith(reads)
    assert found["test"] > least


def test_a_label_per_token_is_read_beside_its_token(tmp_path: Path) -> None:
    labels = [[-100, *(row[:-1] % 3).tolist()] for row in rows(300)]
    found = hunts(tmp_path, labels, rows(300), targets="tokens")
    assert found["best"]["reads"] == "token 1 before the one asked about"
    assert found["test"] == 100


def test_the_place_may_depend_on_the_token_that_is_asked_about(tmp_path: Path) -> None:
    """Odd tokens ask for the token after them, even ones for that two before."""
    ids = rows(600)
    labels = [
        [-100, -100, *(int(row[i + 1] if row[i] % 2 else row[i - 2]) for i in range(2, 10)), -100]
        + [-100] * (len(row) - 11)
        for row in ids
    ]
    found = hunts(tmp_path, labels, ids, targets="tokens")
    assert found["best"]["reads"] == BY_QUESTION
    assert found["test"] > 99


def test_no_view_of_a_causal_task_reads_what_comes_later(tmp_path: Path) -> None:
    made = prepare(lra.data.configure("bytes", ["source=tiny"]), max_length=0, data_dir=tmp_path)
    split = made.split("train")
    train = asked(split, 400)
    assert train.place is not None
    at = np.flatnonzero(train.place == np.sort(train.place)[200])  # answers in the middle
    train = Asked(split, train.example[at], train.place[at], train.labels[at])
    ids = split.ids(np.arange(len(split))).copy()
    ids[:, train.place[0] + 1 :] = 7  # what stands behind them is another text
    other = train._replace(split=replace(split, _ids=ids))
    views = views_of(asked(split, 400))
    assert len(views) > 5
    for view in views:
        for one, two in zip(columns(train, view), columns(other, view), strict=True):
            assert np.array_equal(one, two), view.reads


def test_one_class_and_bad_words_are_refused(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(UserError, match="all training labels of task 'planted' are 1"):
        hunts(tmp_path, [1] * 1500)
    data = ["--data-dir", str(tmp_path)]
    for words, said in (
        (["listop"], "unknown task 'listop'; did you mean listops?"),
        (["recall", "--protocol", "lotformer"], "protocol 'lotformer' does not know task 'recall'"),
        (["listops", "--minutes", "0.01"], "0.01 is no time to hunt in"),
        (["listops", "--minutes", "nan"], "nan is no time to hunt in"),
    ):
        try:
            code = main(["data", "hunt", *words, *data])
        except SystemExit as error:
            code = error.code
        assert code == 2
        assert said in capsys.readouterr().err


def test_the_command_says_and_keeps_what_was_found(tmp_path: Path, capsys: Any) -> None:
    lra.data.from_arrays("planted", (rows(400), [int(row[0] % 2) for row in rows(400)]))
    file = tmp_path / "hunts.jsonl"
    words = ["data", "hunt", "planted", "--minutes", "1", "--to", str(file)]
    assert main([*words, "--data-dir", str(tmp_path)]) == 0
    assert "A shortcut: a table that reads token 1 has" in capsys.readouterr().out
    (kept,) = read_hunts(file)
    keep(kept, file)  # one line per data
    assert [line["best"]["reads"] for line in read_hunts(file)] == ["token 1"]


def test_answers_that_agree_within_an_example_count_as_fewer() -> None:
    right, example = np.repeat([True, False], 500), np.repeat(np.arange(10), 100)
    apart = np.arange(1000)
    low, high = _wilson(right, example)
    assert low < 30 < 70 < high  # five of ten
    low, high = _wilson(right, apart)
    assert 46 < low < 50 < high < 54
    assert _wilson(np.ones(50, bool), np.arange(50))[0] == pytest.approx(92.9, abs=0.1)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"task": "a\x1b[2J"}, "could steer a terminal"),
        ({"score": float("nan")}, "NaN is no number of JSON"),
        ({"fingerprint": None}, "it names no task and fingerprint"),
    ],
)
def test_a_line_that_no_hunt_has_written_is_refused(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    """Though its digest fits."""
    line = {"task": "a", "fingerprint": "0" * 16} | change
    file = tmp_path / "hunts.jsonl"
    file.write_text(json.dumps(line | {"digest": digest(line)}) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=rf"line 1, is damaged or invalid \(.*{problem}"):
        read_hunts(file)
