"""What a record may hold: anything else is refused when it is read, by name and in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lra.base.errors import UserError
from lra.results import record as records
from lra.settings.experiment import read_experiment

from ..synthetic import Make, edit
from .conftest import named

REFUSED = [  # when a record is read, whoever made its digest
    ({"schema": 99}, "schema is 99: input should be 2"),
    ({"status": "running"}, "status is 'running': input should be 'finished'"),
    ({"kind": "nothing"}, "kind is 'nothing'"),
    ({"more": 1}, "it has more, which no record has"),
    ({"score": None}, "score is missing"),
    ({"score": 41.0}, "its score is 41.0, but that of best is 40.0"),
    ({"stages__best__score": 91.237}, "its score is 91.237, but 800 of 2000 are right"),
    ({"stages__best__right": 801}, "its score is 40.0, but 801 of 2000 are right"),
    ({"stages__best__score": True}, "stages.best.score is True"),
    ({"stages__best__loss": -1.0}, "stages.best.loss is -1.0: .*equal to 0"),
    ({"select": "../../../other/checkpoints/best"}, "select is '../../"),
    ({"stages__best__step": -5}, "stages.best.step is -5"),
    ({"stages__best__examples": 0}, "stages.best.examples is 0"),
    ({"stages__best__predicted": [2000, "x"]}, "stages.best.predicted.1 is 'x'"),
    ({"stages__best__predicted": [1999]}, "it has 1999 answers to 2000 questions"),
    ({"stages__last": {"score": 140.0}}, "stages.last.score is 140.0, no percentage"),
    ({"stages": {"last": {"score": 39.0}}}, "stages.best, which gives its score, is missing"),
    ({"floor": -3.0}, "floor is -3.0, no percentage"),
    ({"metric": {"name": "accuracy"}}, "metric.title is missing"),
    (
        {"dev": {"score": 77.7, "step": 100, "examples": 500, "scored": 500, "right": 388}},
        "dev: it",
    ),
    ({"dev": {"score": 77.7, "step": 100}}, "dev does not say how many of how many are right"),
    ({"stages__last": {"score": 1.0}}, "last does not say how many of how many are right"),
    ({"data__": 1}, "its key '' has a dot or is empty"),
    ({"settings__row": "a"}, "its settings have 'row', which no run has"),
    ({"settings__dev": {"score": 99.0}}, "its settings have 'dev', which no run has"),
    ({"protocol__recipe": {"lr": 9.0}}, "its protocol.recipe.lr is not that of its settings"),
    ({"times__finished": "0001-01-01T00:00:00+00:00"}, "is no time of a run"),
    ({"times__finished": "2999-01-01T00:00:00+00:00"}, "is no time of a run"),
    ({"times__finished": "2026-W30-4T10:00:00+00:00"}, "is no time of a run"),
    ({"run": "another-seed-1"}, "its run is another-seed-1, but it is that of run"),
    ({"data__one.two": 1}, "its key 'one.two' has a dot"),
    ({"steps_per_second": float("inf")}, "steps_per_second is inf"),
    ({"compute__flops": 10**400}, "compute.flops is 10+"),
    ({"compute__parameters": 0.5}, "compute.parameters is 0.5"),
    ({"seed": True}, "seed is True: .*integer"),
    ({"git__revision": 5}, "git.revision is 5"),
    ({"data__options": [1]}, r"data.options is \[1\]"),
    ({"data__fingerprint": "another"}, "its settings, data and numerics are those of run"),
    ({"times__finished": "2026-01-01T00:00:00"}, "times.finished is .*: .* timezone"),
    ({"times__finished": "soon"}, "times.finished: Invalid isoformat"),
    ({"steps_per_second": 80.0}, "its speed and time make 889 steps, but it has 100"),
    ({"steps_per_second": 9.3}, "its speed and time make 103 steps, but it has 100"),
    ({"attention__name": "softmax"}, "its attention is .* but in its settings it is"),
    ({"precision": "bf16-mixed"}, "its precision is 'bf16-mixed', but in its settings it is '32"),
    ({"identity": "0" * 12}, "its settings, data and numerics are those of run"),
    ({"model": "../../etc"}, "model is '../../etc': .*pattern"),
    ({"predictions": {"test": [1]}}, "it has predictions, which no record has"),
    ({"settings__protocol__recipe__lr": 0.02}, "its settings, data and numerics are those of run"),
    ({"curve": [[50, 20.0]]}, "its curve has 1 points up to step 50, not one every 50 of 100"),
    ({"curve": [[100, 40.0]]}, "its curve has 1 points up to step 100"),
    ({"curve": [[50, 20.0], [50, 30.0], [100, 40.0]]}, "its curve has 3 points"),
    ({"curve": [[50, 500.0], [100, 40.0]]}, "curve.0.1 is 500.0, no percentage"),
    ({"answers": 5}, "answers is 5"),
    ({"data__source": "\x1b]0;a\x07"}, r"'.x1b\]0;a.x07' holds characters that could steer"),
    ({"data__name": "\u202e"}, "'.u202e' holds characters that could steer"),
    ({"git__\x9b2J": 1}, "'.x9b2J' holds characters that could steer"),
    ({"answers": {"packed": 5}}, "answers.packed is 5"),
    ({"codes": ["a" * 250]}, "codes.0 is 'aaa"),
    ({"codes": ["a" * 90] * 9}, "run is '.*aaa"),
]
OPTIONS = [
    ({"M": {"a": 1}}, "attention.M: .* neither a word, a number nor a list"),
    ({"M": [[1]]}, "attention.M: .* neither a word"),
    ({"kernel": "${oc.env:HOME}"}, "its settings hold an interpolation"),
]
CONVERSIONS = [
    ({"score": float("nan")}, "score is nan"),
    ({"stages__best__score": 700.0}, "stages.best.score is 700.0, no percentage"),
    ({"score": 81.0}, "its score is 81.0, but that of best is"),
    ({"select": "teacher", "score": 90.0}, "its score is that of 'teacher', not of 'best'"),
    ({"task": "../../../../etc"}, "task is '../../../../etc': .*pattern"),
    ({"stages": {"teacher": {"score": 90.0}, "best": 3}}, "stages.best is 3"),
    ({"stages": {"best": {"score": 80.0}}}, "stages.teacher is missing"),
    ({"status": "running"}, "status is 'running'"),
    ({"seconds__total": "soon"}, "seconds.total is 'soon'"),
    ({"labels": {"dev": [1, 0]}, "predictions": {"dev": [1]}}, "one prediction per label"),
    ({"labels": {"b": [1]}, "predictions": {"a": [1]}}, "one prediction per label"),
    ({"labels": 5}, "labels is 5"),
]


def refused(path: Path, why: str) -> None:
    with pytest.raises(UserError, match=why) as error:
        records.read_record(path)
    assert str(path) in str(error.value)


@named(REFUSED)
def test_what_no_run_leaves_behind_is_refused(make: Make, change: dict[str, Any], why: str):
    path = make("luna", 0.4)
    edit(path, **change)
    refused(path, why)


@named(OPTIONS)
def test_an_option_that_names_no_row_is_refused(make: Make, change: dict[str, Any], why: str):
    refused(make("luna", 0.4, options=change), why)


def test_a_name_that_looks_like_another_is_refused(make: Make):
    refused(make("lun\u0430", 0.4), "attention.name is .*pattern")


def test_settings_are_not_looked_up_in_the_environment():
    """Those of a run's folder or of an exported network, which is passed on."""
    with pytest.raises(UserError, match="hold an interpolation"):
        read_experiment({"task": {"name": "listops", "source": "${oc.env:HOME}"}}, seed=1)


@named(CONVERSIONS)
def test_a_damaged_conversion_is_refused(convert: Make, change: dict[str, Any], why: str):
    path = convert("luna", 0.8)
    edit(path, **change)
    refused(path, why)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a":' * 100_000, r'{"a": "\ud800"}'])
def test_a_file_without_facts_is_refused(tmp_path: Path, content: str):
    (tmp_path / "result.json").write_text(content, encoding="utf-8")
    refused(tmp_path / "result.json", "damaged|not a record")
