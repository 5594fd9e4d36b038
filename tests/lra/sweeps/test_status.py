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

from lra.base.digests import digest
from lra.cli import main
from lra.metrics.metric import facts_of, get
from lra.settings.experiment import SCHEMA_VERSION
from lra.sweeps.status import of_folder, of_run, of_sweep, summary
from lra.training.run import train


def folder(root: Path, **status: Any) -> Path:
    place = root / "listops" / f"seed-{len(list(root.rglob('status.json')))}"
    place.mkdir(parents=True)
    (place / "lock").touch()
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    facts = {"updated": "2026-01-01T00:00:00+0000", "pid": 1, "host": "h"} | status
    facts["updated"] = now if facts["updated"] == "now" else facts["updated"]
    (place / "status.json").write_text(json.dumps(facts), encoding="utf-8")
    return place


def gone() -> dict[str, Any]:
    """A process of this machine that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return {"pid": process.pid, "host": socket.gethostname()}


NOW = {"updated": "now"}


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
    # The first steps compiled; the last line is being written.
    text = "step,train_loss,seconds\n10,1,105\n20,1,110\n25,"
    (place / "metrics.csv").write_text(text, encoding="utf-8")
    with (place / "lock").open() as handle:
        if locked:
            fcntl.flock(handle, fcntl.LOCK_EX)
        seen = of_run(place, "x")
    assert seen.state == state
    if state == "running":
        assert seen.detail.startswith("step 40/100 (40%), 0:00:30 left  process ")
    with (place / "lock").open("a+") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if it was kept


def test_the_lock_of_a_run_that_just_wrote_is_left_alone(tmp_path, monkeypatch):
    place = folder(tmp_path, status="running", **NOW)
    monkeypatch.setattr(fcntl, "flock", lambda *_: pytest.fail("the lock was asked for"))
    assert of_run(place, "x").detail == "starting  process 1 on h"


def test_the_summary_counts_all_and_shows_what_needs_a_look(tmp_path):
    """A damaged file hides no other run, and a result counts whatever the status says."""
    folder(tmp_path, status="failed", error="RuntimeError: no memory")
    (folder(tmp_path, status="running") / "lock").unlink()
    done, cut = folder(tmp_path, status="running"), folder(tmp_path, status="finished")
    metric = facts_of(get("accuracy"))
    result = {"schema": SCHEMA_VERSION, "score": 41.25, "metric": metric}
    text = json.dumps(result | {"digest": digest(result)})
    (done / "result.json").write_text(text, encoding="utf-8")
    (cut / "result.json").write_text(text[:20], encoding="utf-8")
    first, *lines = summary(of_folder(tmp_path)).splitlines()
    assert first == "4 runs: 1 done, 1 lost, 2 failed"
    assert "lost         listops/seed-1  process 1 on h is gone" in lines[0]
    assert lines[1] == "failed       listops/seed-0  RuntimeError: no memory"
    assert "result.json is damaged" in lines[2]
    assert of_run(done, "x").detail == "test accuracy 41.25 %"


def test_every_job_of_a_sweep_has_a_state(small, overrides, tmp_path):
    """A job whose settings are refused hides no other."""
    train(small("seed=2", "protocol.recipe.steps=2", "protocol.evaluation.every=2"))
    short = ("protocol.recipe.steps=2", "protocol.evaluation.every=2")
    states = of_sweep([*overrides, *short, "sweep=seeds", "protocol.recipe.lr=0.01,-1"])
    assert sorted({s.state for s in states}) == ["done", "failed", "to do"]
    (finished,) = (s for s in states if s.state == "done")
    assert finished.name.endswith("seed-2")
    assert re.fullmatch(
        r".*lr=-1.* out of range.*", next(s for s in states if s.state == "failed").detail
    )
    [new] = of_sweep(["task=listops", f"data_dir={tmp_path}"])
    assert (new.state, new.detail) == ("to do", "data not prepared")


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
