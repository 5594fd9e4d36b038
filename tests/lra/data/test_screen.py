"""Shortcuts planted at any place of long examples are found, and none where there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lra.data
from lra.data import registry
from lra.data.hunt import attempts_of, hunt
from lra.data.prepare import prepare
from lra.data.words import SHORTEST, hunted

Rows = np.ndarray


def tokens(length: int, n: int = 4000, seed: int = 0) -> Rows:
    return np.random.default_rng(seed).integers(1, 11, (n, length))


@pytest.fixture
def of_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only tables are tried, which take seconds."""
    monkeypatch.setattr(
        "lra.data.hunt.attempts_of",
        lambda problem: [a for a in attempts_of(problem) if a.how in ("table", "constant")],
    )


def found_in(
    place: Path, rows: Any, labels: Any, minutes: float = 10, **options: Any
) -> dict[str, Any]:
    rows = [*rows]
    lra.data.from_arrays("planted", (rows, [*labels]), **options)
    longest = max(map(len, rows))
    made = prepare(lra.data.configure("planted"), max_length=longest, data_dir=place)
    return hunt(made, registry.of_facts(made.facts), minutes=minutes)


@pytest.mark.usefixtures("of_tables")
@pytest.mark.parametrize("seed", [1, 2])
def test_one_token_at_any_place_of_400(seed: int, tmp_path: Path) -> None:
    rows, at = tokens(400), int(np.random.default_rng(seed).integers(33, 366))
    found = found_in(tmp_path, rows, rows[:, at] % 2)
    assert found["best"]["reads"] == f"token {at + 1}"
    assert (found["test"], found["tokens"], found["of_tokens"]) == (100, 1, 400)
    text = "\n".join(hunted(found))
    assert f"A shortcut: a table that reads token {at + 1} has accuracy 100.00 %" in text
    assert "It reads 0.25 % of the tokens: 1 of about 400." in text


@pytest.mark.usefixtures("of_tables")
def test_a_place_from_the_end_of_examples_of_any_length(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.integers(1, 11, rng.integers(150, 200)) for _ in range(3000)]
    found = found_in(tmp_path, rows, [int(row[-60] % 3) for row in rows])
    assert found["best"]["reads"] == "token 60 from the end"
    assert found["test"] == 100


@pytest.mark.usefixtures("of_tables")
def test_a_token_behind_a_marker(tmp_path: Path) -> None:
    rows, rng = tokens(100), np.random.default_rng(3)
    at = rng.integers(0, 99, len(rows))
    rows[np.arange(len(rows)), at] = 11
    found = found_in(tmp_path, rows, rows[np.arange(len(rows)), at + 1] % 2)
    assert found["best"]["reads"] in (
        "the token behind the first 11",
        "the token behind the last 11",
    )
    assert (found["test"], found["tokens"]) == (100, 2)


@pytest.mark.usefixtures("of_tables")
@pytest.mark.parametrize(
    "label",
    [
        lambda one, two: one + two > 11,
        lambda one, two: (one + two) % 10,
        lambda one, two: (one + two) % 2,  # neither says anything alone
    ],
)
def test_two_places_that_decide_together(label: Callable[..., Rows], tmp_path: Path) -> None:
    rows = tokens(80)
    found = found_in(tmp_path, rows, label(rows[:, 37], rows[:, 61]).astype(int))
    assert found["best"]["reads"] == "token 38 and token 62"
    assert (found["test"], found["tokens"]) == (100, 2)


@pytest.mark.usefixtures("of_tables")
def test_a_parity_of_two_far_tokens_may_be_missed_and_this_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lra.data.screen.MOST_PAIRS", 50)  # of ten places
    rows = tokens(60, seed=4)
    found = found_in(tmp_path, rows, (rows[:, 5] + rows[:, 33]) % 2)
    assert not found["found"]
    assert "Missed are places that say nothing alone" in "\n".join(hunted(found))


@pytest.mark.usefixtures("of_tables")
def test_no_alarm_in_twenty_tasks_without_a_shortcut(tmp_path: Path) -> None:
    alarms = 0
    for seed in range(20):
        rng = np.random.default_rng(100 + seed)
        rows = tokens(24, 1200, seed)
        alarms += found_in(tmp_path / str(seed), rows, rng.integers(0, 3, 1200))["found"]
    assert alarms == 0


@pytest.mark.usefixtures("of_tables")
def test_numbers_labels_and_tokens_are_screened_too(tmp_path: Path) -> None:
    rows = tokens(90, 2000)
    number = found_in(tmp_path / "a", rows, rows[:, 50].astype(float))
    assert number["best"]["reads"] == "token 51"
    several = np.stack([rows[:, 44] > 5, rows[:, 44] > 8], axis=1).astype(int)
    of_labels = found_in(tmp_path / "b", rows, several.tolist(), targets="labels")
    assert of_labels["best"]["reads"] == "token 45"
    rows = tokens(90, 120)
    labels = np.full((120, 90), -100)
    labels[:, 40:] = rows[:, :50] % 3
    of_tokens = found_in(tmp_path / "c", rows, labels.tolist(), targets="tokens")
    assert of_tokens["best"]["reads"] == "token 40 before the one asked about"
    assert of_tokens["test"] == 100


def test_what_reads_the_whole_example_is_no_shortcut() -> None:
    found: dict[str, Any] = {
        "metric": {"title": "accuracy", "unit": "%", "digits": 1, "higher_is_better": True},
        "tried": [],
        "best": {"how": "boosting", "reads": "how often each token occurs"},
        "test": 90.0,
        "low": 88.0,
        "high": 92.0,
        "constant": 50.0,
        "found": True,
        "perfect": False,
        "left": 0,
        "tokens": None,
        "of_tokens": 100,
    }
    text = "\n".join(hunted(found))
    assert "Not a shortcut: gradient boosting that reads how often each token occurs" in text
    assert "It reads all tokens, but little of their order." in text
    assert "A shortcut" in "\n".join(hunted(found | {"tokens": 3}))
    short = "\n".join(hunted(found | {"tokens": 1, "of_tokens": SHORTEST - 1}))
    assert "A shortcut" not in short
    assert "It may be no shortcut: examples have about 15 tokens" in short
    older = {key: value for key, value in found.items() if "tokens" not in key}
    assert "A shortcut" in "\n".join(hunted(older))


def test_a_function_of_all_four_tokens_is_not_called_a_shortcut(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("lra.data.rounds.STEPS", 450)
    rows = np.random.default_rng(0).integers(1, 4, (3000, 4))
    table = np.random.default_rng(1).integers(0, 2, (4, 4, 4, 4))
    found = found_in(tmp_path, rows, table[tuple(rows.T)], minutes=1)
    assert found["found"]
    assert found["of_tokens"] == 4
    text = "\n".join(hunted(found))
    assert "It may be no shortcut" in text
    assert "A shortcut:" not in text
