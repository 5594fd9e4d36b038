"""Records whose numbers contradict their answers, their settings or each other are refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lra.base.digests import digest
from lra.base.errors import UserError
from lra.data.prepare import with_fingerprint
from lra.metrics import Answers
from lra.metrics.target import Classes
from lra.results import audit
from lra.results import record as records
from lra.settings.compose import Run
from lra.training.run import train

from ..synthetic import Make, add_answers, edit
from .conftest import answered, named

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


@named(FORGED)
def test_a_forged_number_is_refused(proof, change: dict[str, Any], why: str):
    record = proof(**change)
    with pytest.raises(UserError, match=why) as error:
        audit.refuse_contradictions([record])
    assert str(record.path) in str(error.value)


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
