"""A metric of somebody's own is refused before anything is trained, in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lra
from lra.base.errors import UserError
from lra.data import registry
from lra.metrics import Answers, Metric, Target, metric
from lra.metrics.target import Numbers
from lra.runs.folder import RESULT

from ..conftest import SMALL

WORDS = [word for word in SMALL if not word.startswith(("task", "protocol.data", "compute"))]


def metric_of(score: Any = 1.0, **facts: Any) -> type[Metric]:
    def give(self: Metric, answers: Answers, target: Target) -> Any:
        return score() if callable(score) else score

    facts = {"name": "mine", "title": "Mine", "targets": ("numbers",), "score": give} | facts
    return type("Mine", (Metric,), facts)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this test registers, nobody else sees."""
    metric.suited("numbers")
    monkeypatch.setattr(registry.TASKS, "added", {})
    monkeypatch.setattr(metric.METRICS, "added", dict(metric.METRICS.added))


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"name": "../x"}, "a word of letters"),
        ({"name": "a/b"}, "a word of letters"),
        ({"name": "a.b"}, "a word of letters"),
        ({"name": "\x1b[2J"}, r"name = '\\x1b\[2J': it must be a word"),
        ({"name": ""}, "a word of letters"),
        ({"name": 5}, "a word of letters"),
        ({"title": "\x1b[2J"}, "a text in one line"),
        ({"title": 5}, "a text in one line"),
        ({"unit": "a\nb"}, "a text in one line"),
        ({"digits": -1}, "from 0 to 9"),
        ({"digits": True}, "from 0 to 9"),
        ({"higher_is_better": "no"}, "True or False"),
        ({"targets": "numbers"}, "a tuple of classes, labels, numbers"),
        ({"targets": ("pictures",)}, "a tuple of classes, labels, numbers"),
    ],
)
def test_facts_that_no_record_holds(facts: dict[str, Any], why: str):
    with pytest.raises(UserError, match=f"metric 'Mine' has .*{why}"):
        metric.register(metric_of(**facts))


def boom() -> float:
    raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("score", "unit", "why"),
    [
        (float("nan"), "", "gave nan: it must be a finite number"),
        (float("inf"), "", "gave inf: it must be a finite number"),
        (1e30, "", "it must be a finite number"),
        (100.5, "%", "gave 100.5: it must be 0 to 100, as its unit is %"),
        (-3.0, "%", "it must be 0 to 100"),
        ("12", "", "gave '12': it must return a float"),
        (True, "", "gave True: it must return a float"),
        (torch.ones(2), "", "failed at"),
        (None, "", "failed at"),
        (boom, "", r"failed at .*test_own\.py, line \d+ \(RuntimeError: boom\)"),
    ],
)
def test_a_score_that_is_none_stops_a_run_before_it_trains(
    score: Any, unit: str, why: str, tmp_path: Path, monkeypatch
):
    rows = 1 + np.random.default_rng(0).integers(0, 2, (40, 12))
    mine = metric_of(score, unit=unit)
    lra.data.from_arrays("numbers", (rows, rows.mean(1)), metrics=["rmse", mine])
    places = [f"data_dir={tmp_path / 'data'}", f"runs_dir={tmp_path / 'runs'}"]
    run = lra.compose([*WORDS, "compute=off", "task=numbers", *places])
    monkeypatch.setattr("lra.training.run.fit", lambda *_: pytest.fail("it trains"))
    with pytest.raises(UserError, match=f"metric 'mine', .*{why}"):
        lra.train(run)
    assert not [*(tmp_path / "runs").rglob(RESULT)]


def test_a_float_of_numpy_or_torch_is_a_score():
    labels = np.arange(4.0)
    for score in (np.float32(3.5), torch.tensor(3.5), np.int64(3), 3):
        floor = metric.floor_of(metric_of(score)(), labels, labels, Numbers(1, (0.0,), (1.0,)))
        assert type(floor) is float
        assert floor == float(score)
