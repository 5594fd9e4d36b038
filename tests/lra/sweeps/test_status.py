"""`lra status` reports the state of runs from their folders alone."""

from __future__ import annotations

import fcntl
import json
import re
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from lra.cli import main
from lra.sweeps.status import of_folder, of_run, of_sweep, summary
from lra.training.run import train

OLD = "2026-01-01T00:00:00+0000"


def folder(root: Path, **status: Any) -> Path:
    place = root / "listops" / "luna" / f"seed-{len(list(root.rglob('status.json')))}"
    place.mkdir(parents=True)
    (place / "lock").touch()
    facts = {"updated": OLD, "pid": 1, "host": "h"} | status
    if facts["updated"] == "now":
        facts["updated"] = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    (place / "status.json").write_text(json.dumps(facts), encoding="utf-8")
    return place


def metrics(place: Path, step: int, seconds: float) -> None:
    text = f"step,train_loss,seconds\n{step // 2},1,{seconds / 2}\n{step},1,{seconds}\n{step + 5},"
    (place / "metrics.csv").write_text(text, encoding="utf-8")  # the last line is being written


def result(accuracy: float) -> str:
    return json.dumps({"test": {"accuracy": accuracy}, "dev": {"accuracy": accuracy}})


NOW = {"updated": "now"}  # when the test runs, which may be long after it was collected


def gone() -> dict[str, Any]:
    """A process of this machine that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return {"pid": process.pid, "host": socket.gethostname()}


@pytest.mark.parametrize(
    ("facts", "locked", "state"),
    [
        ({}, True, "running"),  # silent: it evaluates
        ({}, False, "lost"),
        (NOW, False, "running"),
        (NOW | gone(), False, "lost"),
        (NOW | gone(), True, "running"),  # by another process, which has not written yet
    ],
)
def test_a_run_is_lost_when_no_process_holds_its_lock(
    tmp_path, facts: dict[str, Any], locked: bool, state: str
):
    place = folder(tmp_path, status="running", step=40, steps=100, **facts)
    metrics(place, 20, 10.0)
    with (place / "lock").open() as handle:
        if locked:
            fcntl.flock(handle, fcntl.LOCK_EX)
        seen = of_run(place, "x")
    assert seen.state == state
    if state == "running":
        assert seen.detail.startswith("step 40/100 (40%), 0:00:30 left  process ")
    with (place / "lock").open("a+") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if it was kept


def test_a_run_without_lock_is_lost_and_one_with_a_result_is_done(tmp_path):
    place = folder(tmp_path, status="running")
    (place / "lock").unlink()
    assert of_run(place, "x").state == "lost"
    (place / "result.json").write_text(result(0.4125), encoding="utf-8")
    assert (of_run(place, "x").state, of_run(place, "x").detail) == ("done", "test accuracy 41.25%")


def test_the_lock_of_a_run_that_just_wrote_is_left_alone(tmp_path, monkeypatch):
    place = folder(tmp_path, status="running", **NOW)
    monkeypatch.setattr(fcntl, "flock", lambda *_: pytest.fail("the lock was asked for"))
    assert of_run(place, "x").detail == "starting  process 1 on h"


def test_the_summary_counts_all_and_shows_what_needs_a_look(tmp_path):
    folder(tmp_path, status="failed", error="RuntimeError: no memory")
    folder(tmp_path, status="interrupted", how="by SIGTERM")
    done = folder(tmp_path, status="finished")
    (done / "result.json").write_text(result(0.4), encoding="utf-8")
    assert summary(of_folder(tmp_path)).splitlines() == [
        "3 runs: 1 done, 1 interrupted, 1 failed",
        "interrupted  listops/luna/seed-1  by SIGTERM",
        "failed       listops/luna/seed-0  RuntimeError: no memory",
    ]
    assert summary([]) == "no runs"


@pytest.mark.parametrize("text", ["", '{"test": {"accu', "[]", "{}"])
def test_a_damaged_file_is_named_and_hides_no_other_run(tmp_path, text: str):
    damaged, other = folder(tmp_path, status="finished"), folder(tmp_path, status="failed")
    (damaged / "result.json").write_text(text, encoding="utf-8")
    (other / "status.json").write_text('{"status": "fai', encoding="utf-8")
    lines = summary(of_folder(tmp_path)).splitlines()
    assert lines[0] == "2 runs: 2 failed"
    assert "result.json is " in lines[1]
    assert "status.json is damaged" in lines[2]


def test_a_sweep_knows_its_jobs_that_have_not_started(overrides, small):
    sweep = [*(o for o in overrides if not o.startswith("attention=")), "attention=linear,uniform"]
    named = ["sweep=seeds", "protocol.recipe.steps=2", "protocol.evaluation.every=2"]
    train(small("protocol.recipe.steps=2", "protocol.evaluation.every=2", "seed=2"))
    states = of_sweep([*sweep, *named])
    assert sorted(s.state for s in states) == ["done"] + ["to do"] * 5
    (finished,) = (s for s in states if s.state == "done")
    assert "/linear/" in finished.name
    assert finished.name.endswith("seed-2")


def test_a_refused_job_hides_no_other_of_its_sweep(tmp_path):
    words = ["task=listops", "protocol.recipe.lr=-1,0.1", f"data_dir={tmp_path}"]
    lines = summary(of_sweep(words)).splitlines()
    assert lines[0] == "2 runs: 1 to do, 1 failed"
    assert re.fullmatch(r"failed +protocol\.recipe\.lr=-1  .*lr=-1.* out of range.*", lines[1])


def test_data_that_are_not_prepared_are_said(tmp_path):
    words = ["task=listops", "attention=linear,luna", "seed=1,2", f"data_dir={tmp_path}"]
    states = of_sweep(words)
    assert [(s.state, s.detail) for s in states] == [("to do", "data not prepared")] * 4


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--runs", "/none"], "does not exist; the first run makes it"),
        (["-m", "protocol.recipe.lr=interval(0.1,1)"], "a search, whose trials are not known"),
        (["attention=nonesuch"], "unknown attention 'nonesuch'"),
    ],
)
def test_mistakes_are_sentences(capsys, words: list[str], sentence: str):
    assert main(["status", *words]) == 2
    assert sentence in capsys.readouterr().err
