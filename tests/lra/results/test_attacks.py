"""Forged and damaged records are refused by name, in one sentence."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lra.base.digests import digest
from lra.base.errors import UserError
from lra.data.prepare import with_fingerprint
from lra.metrics import Answers
from lra.metrics.target import Classes
from lra.results import audit
from lra.results import record as records
from lra.runs.answers import read_answers, write_answers
from lra.settings.compose import Run
from lra.settings.experiment import read_experiment
from lra.training.run import train

from ..synthetic import Make, add_answers, edit
from .conftest import answered

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
ON_DEV = {"score": 90.0, "step": 100, "scored": 10, "right": 9}
FORGED: list[tuple[dict[str, Any], str]] = [  # which other numbers of the record contradict
    (
        {
            "score": 91.0,
            "stages__best__score": 91.0,
            "stages__best__right": 1820,
        },
        "test accuracy is 91, but 40 follows",
    ),
    ({"stages__best__loss": 0.3}, "test loss is 0.3, but"),
    (
        {"stages__best__predicted": [2000] + [0] * 9},
        r"its answers are \[200, .*, but it says \[2000, 0",
    ),
    ({"dev": ON_DEV}, "best dev score is 90, but 40 follows"),
    ({"stages__best__step": 200}, "its best checkpoint is of step 200, but it has 100 steps"),
    ({"stages__last__step": 200}, "its last checkpoint is of step 200, but it has 100 steps"),
    ({"answers_of_run": answered(40, 200), "stages__best__predicted": None}, "200 answers to 2000"),
]


def named(table: list[tuple[dict[str, Any], str]]) -> pytest.MarkDecorator:
    names = [f"{next(iter(change))}-{why:.20}" for change, why in table]
    return pytest.mark.parametrize(("change", "why"), table, ids=names)


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


@named(FORGED)
def test_a_forged_number_is_refused(proof, change: dict[str, Any], why: str):
    record = proof(**change)
    with pytest.raises(UserError, match=why) as error:
        audit.refuse_contradictions([record])
    assert str(record.path) in str(error.value)


# ---------------------------------------------------------------------- answers and labels


def test_labels_that_are_the_answers_are_refused(proof):
    """The file, its digest and the score are forged; the digest of the labels is the true one."""
    record = proof()
    true = record.answers
    forged = Answers(true.answers, true.answers.copy(), true.log_p, true.log_p_label[:0])
    add_answers(record.path, forged)
    facts = forged.digests() | {"labels": true.digests()["labels"]}
    perfect = {"score": 100.0, "right": 2000, "loss": Classes(10).loss_of(forged)}
    stage = record.stage | perfect | {"predicted": None}
    edit(record.path, answers=facts, score=100.0, stages__best=stage)
    with pytest.raises(UserError, match="not the answers of the record"):
        audit.refuse_contradictions([records.read_record(record.path)])


def test_runs_on_the_same_data_have_the_same_labels(proof):
    runs = [proof(), proof(seed=2, answers_of_run=answered(800, labels=1))]
    with pytest.raises(UserError, match="labels are not those of other runs on the same data"):
        audit.refuse_contradictions(runs)


def test_conversions_on_the_same_data_have_the_same_labels(convert: Make):
    true, forged = [0, 1] * 8, [1] * 16
    for seed, labels in enumerate((true, forged)):
        convert("luna", 0.8, seed=seed, labels={"dev": labels}, predictions={"dev": forged})
        path = convert("linear", 0.8, seed=seed, labels={"dev": labels}, predictions={"dev": true})
    runs = records.load_records([path.parents[5]])
    with pytest.raises(UserError, match="labels are not those of other runs on the same data"):
        audit.refuse_contradictions(runs)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"recovery": 99.0}, "its recovery is 99, but"),
        ({"headroom_recovery": 99.0}, "its headroom_recovery is 99, but"),
        ({"floor": 70.0}, "its floor is 70, but 50 follows"),
        ({"score": 90.0, "stages__best__score": 90.0}, "its score is 90, but 87.5 follows"),
    ],
)
def test_a_forged_conversion_is_refused_without_its_data(convert: Make, change: Any, why: str):
    labels, predictions = [0, 1] * 8, [0] * 4 + [0, 1] * 6
    facts = {"floor": 0.5, "labels": {"dev": labels}, "predictions": {"dev": predictions}}
    path = convert("luna", 0.875, **facts)
    edit(path, recovery=None, headroom_recovery=None, score=87.5, stages__best__score=87.5)
    audit.refuse_contradictions(records.load_records([path]))
    edit(path, **change)
    with pytest.raises(UserError, match=why):
        audit.refuse_contradictions(records.load_records([path]))


@pytest.mark.parametrize(
    ("split", "labels", "forged"),
    [("dev", [0, 1] * 8, False), ("dev", [1, 0] * 8, True), ("other", [0, 1] * 8, True)],
)
def test_a_lone_conversion_has_the_labels_of_its_task(
    convert: Make, tmp_path: Path, split: str, labels: list[int], forged: bool
):
    (tmp_path / "SST-2").mkdir()
    rows = "".join(f"a text\t{label}\n" for label in [0, 1] * 8)
    for name in ("train", "dev"):
        (tmp_path / f"SST-2/{name}.tsv").write_text(f"sentence\tlabel\n{rows}")
    facts = {"labels": {split: labels}, "predictions": {split: [1] * 16}, "floor": 0.5}
    [record] = records.load_records([convert("luna", 0.5, task="sst2", **facts)])
    assert audit.check_records([record], tmp_path, reevaluate=True) == {audit.RECOMPUTED: 1}
    assert audit.check_records([record], tmp_path, tmp_path / "none") == {audit.RECOMPUTED: 1}
    if not forged:
        assert audit.check_records([record], tmp_path, tmp_path) == {audit.PROVEN: 1}
        return
    with pytest.raises(UserError, match="its labels are not those of the task's data"):
        audit.check_records([record], tmp_path, tmp_path)


@pytest.mark.parametrize("log_p", [-1.0, 60000.0, float("nan")])
def test_impossible_probabilities_are_refused(tmp_path: Path, log_p: float):
    stored = answered(200, 500)
    forged = dataclasses.replace(stored, log_p=np.full_like(stored.log_p, log_p))
    write_answers(tmp_path / "a.npz", {"run": forged})
    with pytest.raises(UserError, match="no log-probability"):
        read_answers(tmp_path / "a.npz", "run", forged.digests())


# ---------------------------------------------------------------------- what is computed again


def test_what_settings_and_data_decide_is_computed_again(
    small: Callable[..., Run], data_dir: Path, tmp_path: Path
):
    words = ("protocol.recipe.steps=2", "protocol.evaluation.every=2", "compute=report")
    path = train(small(*words))
    record = records.read_record(path)
    assert audit.check_records([record], data_dir) == {audit.PROVEN: 1}
    compute, facts = record["compute"], json.loads(path.read_text(encoding="utf-8"))
    assert facts["digest"] == digest(facts)
    forged = {
        "parameters, not 1000": {"compute": compute | {"parameters": 1000}},
        "flops, not 1000": {"compute": compute | {"flops": 1000}},
        "its budget has .* flops": {
            "compute": compute | {"budget": compute["budget"] | {"flops": 9}}
        },
        "its verdict is 'over'": {"compute": compute | {"verdict": "over"}},
        "it has no budget, but": {"compute": compute | {"budget": None, "verdict": "matched"}},
        "floor is 50": {"floor": 50.0},
    }
    for why, change in forged.items():
        edited = dataclasses.replace(record, facts=record.facts | change)
        with pytest.raises(UserError, match=why):
            audit.check_records([edited], data_dir)

    prepared = with_fingerprint(data_dir, record["task"], record["data.fingerprint"])
    labels = torch.from_numpy(prepared.split("test").labels[:].astype("int64"))
    logits = torch.nn.functional.one_hot((labels + 1) % 10, 10).float()
    perfect = Classes(10).store(logits, (labels + 1) % 10)
    add_answers(path, perfect)
    counts = {"score": 100.0, "right": record.stage["scored"], "predicted": None}
    stage = record.stage | counts | {"loss": Classes(10).loss_of(perfect)}
    edit(path, score=100.0, **{f"stages__{record['select']}": stage})
    with pytest.raises(UserError, match="its labels are not those of the prepared data"):
        audit.check_records([records.read_record(path)], data_dir)
