"""Records travel, and what is damaged or foreign stays out."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import lra
from lra.base.errors import UserError
from lra.cli import main
from lra.report.page import page
from lra.report.render import markdown
from lra.report.specs import TableSpec
from lra.report.trainings import build
from lra.results import audit
from lra.results import record as records
from lra.results.export import export
from lra.results.frame import frame_of
from lra.runs.schema import TrainingRecord
from lra.settings.compose import Run
from lra.training.run import train

from ..conftest import SMALL
from ..synthetic import Make, edit, facts

# The clock of the first machine shows more, and its zone tells that it was earlier.
EARLIER, LATER = "2026-01-02T01:00:00+0900", "2026-01-01T23:00:00+0000"


def test_a_run_becomes_a_record_and_comes_back_the_same(make: Make, runs: Path, tmp_path: Path):
    make("luna", 0.4)
    (before,) = records.load_records([runs])
    assert before["curve"] == [[50, 20.0], [100, 40.0]]
    assert before["settings.protocol.recipe.lr"] == 0.002
    out, more = tmp_path / "out.jsonl", tmp_path / "more.jsonl"
    export({out: [runs]})
    (after,) = records.load_records([out])
    assert after.facts == before.facts
    assert after.where == f"{out}, run {before.run}"
    with pytest.raises(UserError, match=f"{before.run} is a record alone: give the folder"):
        lra.load(after)
    assert len(export({more: [out]})["new"]) == 1
    assert more.read_bytes() == out.read_bytes()


def test_shared_facts_stand_in_the_first_line(make: Make, runs: Path, tmp_path: Path):
    make("luna", 0.4, steps_share=1)
    make("luna", 0.5, seed=2, steps_share=1.0, options={"M": 4})
    out, plain = tmp_path / "out.jsonl", tmp_path / "plain.jsonl"
    export({out: [runs]})
    head, *lines = out.read_text(encoding="utf-8").splitlines()
    assert '"dwc":"none"' in head
    assert not any('"dwc"' in line for line in lines)
    after = [record.facts for record in records.read_sweep(out)]
    before = [r.facts for r in records.load_records([runs])]
    assert len(lines) == 2
    assert before == after
    plain.write_text("".join(records.lines_of([f])[0] + "\n" for f in before), encoding="utf-8")
    assert [record.facts for record in records.read_sweep(plain)] == after
    out.write_text("\n".join([head.replace('"none"', '"conv1d"'), *lines]), encoding="utf-8")
    with pytest.raises(UserError, match="its digest does not fit"):
        records.read_sweep(out)


def test_what_training_leaves_behind_is_a_record(
    small: Callable[..., Run], data_dir: Path, tmp_path: Path
):
    words = ("protocol.recipe.steps=4", "protocol.evaluation.every=2", "attention=luna")
    places = (f"data_dir={data_dir}", f"runs_dir={tmp_path / 'runs'}")
    command = shlex.join(["lra", "train", *SMALL, *words, *places])
    result = train(small(*words), command)
    (record,) = records.load_records([tmp_path / "runs"])
    assert record.path == result
    assert [step for step, _ in record["curve"]] == [2, 4]
    assert record["command"] == command
    assert audit.check_records([record], data_dir, reevaluate=True) == {audit.PROVEN: 1}
    export({tmp_path / "out.jsonl": [tmp_path / "runs"]})
    (exported,) = records.load_records([tmp_path / "out.jsonl"])
    table = build(TableSpec(name="t", title="T"), frame_of([exported]))
    assert f"{record.score:.1f} (1)" in markdown(table, tmp_path)
    assert "steps/s" in page([table], tmp_path)

    checkpoint = record.path.parent / "checkpoints" / f"{record['select']}.ckpt"
    stored = torch.load(checkpoint, weights_only=True)
    for name, weight in stored["state_dict"].items():
        if name.startswith("network.head"):
            weight.neg_()
    torch.save(stored, checkpoint)
    with pytest.raises(UserError, match="does not hold the weights that were tested"):
        audit.check_records([record], data_dir, reevaluate=True)
    edited = dataclasses.replace(record, facts=record.facts | {"compute": {"parameters": 5}})
    with pytest.raises(UserError, match="parameters, not 5"):
        audit.check_records([edited], data_dir)


def test_of_two_attempts_the_first_to_finish_is_shown(make: Make, runs: Path):
    make("luna", 0.4, times__finished=LATER)
    make("luna", 0.6, times__finished=EARLIER, attempt=2, folder="seed-1-attempt-2")
    both = records.load_records([runs])
    assert [record.score for record in both] == [40, 60]
    assert [record.score for record in records.first_finished(both)] == [60]


@pytest.mark.parametrize("earlier", [True, False])
def test_no_record_on_disk_is_replaced_unasked(runs: Path, tmp_path, make: Make, earlier, capsys):
    """Whichever says that it finished first."""
    make("luna", 0.4, times={"finished": LATER if earlier else EARLIER})
    out, other = tmp_path / "into" / "other.jsonl", tmp_path / "other"
    export({out: [runs]})
    runs.rename(tmp_path / "first")
    make("luna", 0.9, times={"finished": EARLIER if earlier else LATER})
    runs.rename(other)
    for words, score in (([], 40), (["--replace"], 90)):
        assert main(["records", "import", str(other), "--into", str(out.parent), *words]) == 0
        assert "another outcome" in capsys.readouterr().out
        assert [r.score for r in records.load_records([out])] == [score]
    both = records.load_records([tmp_path / "first", other])
    assert [r.score for r in both] == [90 if earlier else 40]


def test_an_edited_record_of_a_run_is_named(make: Make, runs: Path):
    path = make("luna", 0.4)
    text = path.read_text(encoding="utf-8").replace('"seed": 1', '"seed": 2')
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"result\.json is damaged .*edited, or is of an earlier"):
        records.load_records([runs])


def test_with_one_damaged_record_nothing_is_imported(make: Make, runs: Path, tmp_path: Path):
    make("luna", 0.4)
    edit(make("softmax", 0.3), schema=0)
    with pytest.raises(UserError, match="schema is 0"):
        export({tmp_path / "out.jsonl": [runs]})
    assert not (tmp_path / "out.jsonl").exists()


def test_a_damaged_record_is_left_out_where_it_can_be(make: Make, runs: Path, tmp_path, capsys):
    """Alone in a folder, or a line of a file."""
    make("luna", 0.4)
    edit(make("softmax", 0.3), schema=0)
    (shown,) = lra.records(runs)
    assert (shown.attention, repr(shown)) == ("luna", "<listops, luna, seed 1: 40.00 %>")
    assert "left out: record" in capsys.readouterr().err
    assert main(["table", "--runs", str(runs)]) == 0
    assert "luna" in capsys.readouterr().out
    out = tmp_path / "out.jsonl"
    lines = records.lines_of([r.facts | {"schema": v} for r in (shown,) for v in (0, 2)])
    out.write_text("\n".join(lines), encoding="utf-8")
    assert [r.attention for r in lra.records(out)] == ["luna"]
    with pytest.raises(UserError, match=r"line 2, run .* schema is 0"):
        records.load_records([out])


def test_a_run_that_kept_no_curve_is_a_record(make: Make, runs: Path):
    edit(make("luna", 0.4), curve=[])
    (record,) = records.load_records([runs])
    assert record["curve"] == []


@pytest.mark.parametrize("year", [2025, 2026, 2027, 2099])
def test_no_date_decides_whether_a_record_is_read(make: Make, runs: Path, year: int):
    """What may be missing may be missing for ever: else runs of older code would end one day."""
    times = {"started": LATER, "finished": f"{year}-12-31T00:00:00+0000"}
    make("luna", 0.4, curve=[], dev=None, times=times)
    read = records.load_records([runs])
    audit.refuse_contradictions(read)
    assert len(read) == 1


def test_a_fact_that_is_not_there_names_the_nearest(make: Make, runs: Path):
    make("luna", 0.474)
    records_of = lra.records(runs)
    with pytest.raises(KeyError, match=r"no fact 'dev.scor'; did you mean dev.score"):
        records_of[0]["dev.scor"]
    with pytest.raises(KeyError, match="no fact 'nope'; known: ") as raised:
        records_of[0]["nope"]
    assert len(str(raised.value)) < 600, "their parts, and not hundreds of names"
    frame = records_of.to_pandas()
    assert (frame.score[0], frame["protocol.recipe.lr"][0], frame["attention.M"][0]) == (
        47.4,
        0.002,
        8,
    )
    assert repr(records_of).startswith("<1 records")


def test_a_setting_that_records_leave_out_is_as_usual_in_a_frame():
    usual, other = facts("luna", 0.474), facts("luna", 0.4)
    other["settings"]["protocol"]["style"] = {"mlp": False}
    frame = frame_of([records.Record(run, Path()) for run in (usual, other)])
    assert [*frame["protocol.style.mlp"]] == [True, False]


def test_from_the_command_line(make: Make, runs: Path, tmp_path: Path, capsys):
    make("luna", 0.4)
    out, other = str(tmp_path / "out" / "a" / "mine.jsonl"), str(tmp_path / "other")
    assert main(["records", "export", out, "--runs", str(runs)]) == 0
    assert main(["records", "export", other, "--runs", str(runs)]) == 2
    assert f"name a file, such as {other}/mine.jsonl" in capsys.readouterr().err
    for source in (tmp_path / "out", tmp_path / "out", out, runs):
        assert main(["records", "import", str(source), "--into", other]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"1 new records in {other}/a/mine.jsonl, 0 already there",
        f"0 new records in {other}/a/mine.jsonl, 1 already there",
        f"1 new records in {other}/mine.jsonl, 0 already there",
        f"1 new records in {other}/runs.jsonl, 0 already there",
    ]
    assert main(["records", "import", str(tmp_path / "nothing")]) == 2
    assert "nothing does not exist; the first run makes it" in capsys.readouterr().err


# ---------------------------------------------------------------------- conversions


def test_a_conversion_that_two_machines_recorded_counts_once(convert: Make, runs: Path):
    """Its folder has another name on each, because that depends on the teacher's path."""
    convert("luna", 0.8)
    convert("luna", 0.9, key="elsewhere")
    assert len(records.load_records([runs])) == 1


def test_a_count_stays_whole_when_a_run_builds_its_record(make: Make, runs: Path):
    """As a float it would be shown as 19,000,000.0."""
    make("luna", 0.4)
    (before,) = records.load_records([runs])
    built = TrainingRecord.model_validate(before.facts).facts()
    assert type(built["compute"]["budget"]["flops"]) is int
    assert type(built["seconds"]["evaluation"]) is float
    assert {**built, "times": None, "digest": None} == {
        **before.facts,
        "times": None,
        "digest": None,
    }
