"""Records that cannot be right are refused; the others say what their numbers follow from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lra.base.config import UserError
from lra.results import audit
from lra.results import record as records
from lra.runs.answers import Answers

from ..synthetic import Make


def answered(hits: int, n: int = 2000, labels: int = 0) -> Answers:
    """Answers of which the first `hits` are right; `labels` shifts the labels."""
    y = (torch.arange(n) + labels) % 10
    logits = torch.nn.functional.one_hot(torch.where(torch.arange(n) < hits, y, (y + 1) % 10), 10)
    return Answers.of([logits.float()], [y])


@pytest.fixture
def proof(make: Make) -> Callable[..., records.Record]:
    """proof("luna", hits=800, **facts): the record of a run with its answers."""

    def write(attention: str = "luna", hits: int = 800, **more: Any) -> records.Record:
        given = more.pop("given", answered(hits))
        facts: dict[str, Any] = {
            "test__loss": given.loss,
            "answers": given.facts(),
            "dev": {"accuracy": hits / 2000, "step": 100},
            "test__predicted": torch.bincount(torch.from_numpy(given.answers), minlength=10)
            .tolist(),
        }  # fmt: skip
        path = make(attention, hits / 2000, **(facts | more))
        given.write(path.with_name("answers.npz"))
        record = records.read_record(path)
        assert record is not None
        return record

    return write


def test_an_honest_record_passes_and_says_what_it_follows_from(proof, make, tmp_path: Path):
    trusted = records.read_record(make("linear", 0.3, seed=2))
    found = audit.check_records([proof(), trusted], tmp_path)
    assert found == {audit.RECOMPUTED: 1, audit.TRUSTED: 1}


def test_an_accuracy_of_no_number_of_hits_is_refused(make: Make):
    with pytest.raises(UserError, match=r"test\.accuracy is 0\.91237, no multiple of 1/2000"):
        records.read_record(make("luna", 0.91237))


FORGED: list[tuple[dict[str, Any], str]] = [
    ({"test__accuracy": 0.912}, "test accuracy is 0.912, but 0.4 follows"),
    ({"test__loss": 0.3}, "test loss is 0.3, but"),
    ({"test__predicted": [2000] + [0] * 9}, r"its answers are \[200, .*, but it says \[2000, 0"),
    ({"dev": {"accuracy": 0.9, "step": 100}}, "best dev accuracy is 0.9, but 0.4 follows"),
    ({"steps_per_second": 80.0}, "its speed and time make 889 steps, but it has 100"),
    ({"test__step": 200}, "its checkpoint is of step 200, but it has 100 steps"),
    ({"times__finished": "2999-01-01T00:00:00+0000"}, "finished in the future"),
]


@pytest.mark.parametrize(("change", "why"), FORGED, ids=[next(iter(c)) for c, _ in FORGED])
def test_a_forged_number_is_refused_by_name(proof, change: dict[str, Any], why: str):
    record = proof(**change)
    with pytest.raises(UserError, match=why) as error:
        audit.refuse_contradictions([record])
    assert str(record.path) in str(error.value)


def test_runs_on_the_same_data_have_the_same_labels(proof):
    with pytest.raises(UserError, match="labels are not those of other runs on the same data"):
        audit.refuse_contradictions([proof(), proof(seed=2, given=answered(800, labels=1))])


def test_answers_of_another_run_are_refused(proof):
    record = proof()
    answered(801).write(record.answers_file)
    with pytest.raises(UserError, match="damaged or not of the record beside it"):
        audit.refuse_contradictions([record])


def test_answers_travel_with_an_export(proof, runs: Path, tmp_path: Path):
    proof()
    records.export([runs], tmp_path / "records")
    [exported] = records.load_records([tmp_path / "records"])
    assert exported.answers is not None
    assert exported.answers.accuracy == 0.4
    exported.answers_file.unlink()
    assert records.load_records([tmp_path / "records"])[0].answers is None


def test_answers_can_stay_behind_and_follow_later(proof, runs: Path, tmp_path: Path):
    proof()
    [bare] = records.export([runs], tmp_path / "out", answers=False)["new"]
    [exported] = records.load_records([tmp_path / "out"])
    before = exported.path.read_bytes()
    assert not exported.answers_file.exists()
    records.export([runs], tmp_path / "out")
    assert exported.answers_file.read_bytes() == bare.answers_file.read_bytes()
    assert exported.path.read_bytes() == before
