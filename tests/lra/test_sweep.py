"""Sweeps: every run is tried, none takes another with it, and the end says how each went."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from lra.callbacks import read_metrics
from lra.disk import read_json
from lra.sweep import Outcome, summarise

from .conftest import command, start

SHORT = ("protocol.recipe.steps=2", "protocol.evaluation.every=2")
ENDLESS = (
    "protocol.recipe.steps=900000",
    "protocol.evaluation.every=300000",
    "trainer.print_every=0",
)


def sweep(overrides: list[str], *words: str):
    return command("train.py", "-m", *overrides, *words)


def test_a_sweep_runs_every_combination_and_the_second_time_none(
    overrides: list[str], tmp_path: Path
):
    words = ("attention=linear,uniform", "seed=1,2", *SHORT)
    done = sweep(overrides, *words)
    assert done.returncode == 0, done.stderr
    assert "sweep of 4: 4 done" in done.stdout
    results = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("result.json")}
    assert len(results) == 4
    again = sweep(overrides, *words, "attention=linear,uniform,softmax")
    assert again.returncode == 0, again.stderr
    assert "sweep of 6: 2 done, 4 finished before" in again.stdout
    assert all(p.stat().st_mtime_ns == t for p, t in results.items())


def test_a_run_that_fails_takes_no_other_with_it(overrides: list[str], tmp_path: Path):
    done = sweep(overrides, "protocol.recipe.lr=1e30,0.01", "protocol.recipe.clip=none")
    assert done.returncode == 1
    assert "sweep of 2: 1 done, 1 failed" in done.stdout
    assert "failed  " in done.stdout
    assert "the run diverged" in done.stdout
    assert len(list(tmp_path.rglob("result.json"))) == 1


def test_a_mistake_in_one_job_is_its_outcome(overrides: list[str], tmp_path: Path):
    done = sweep(overrides, "attention.eps=1e-6,none", *SHORT)
    assert done.returncode == 1
    assert "sweep of 2: 1 done, 1 failed" in done.stdout
    assert "linear.eps must be float, got 'none'" in done.stdout


def test_a_run_that_is_killed_is_tried_again_and_resumes(overrides: list[str], tmp_path: Path):
    words = ("protocol.recipe.steps=900", "protocol.evaluation.every=300", "trainer.print_every=0")
    with start("train.py", "-m", *overrides, *words, "seed=1,2", "retries=1") as process:
        output = []
        for line in process.stdout:
            output.append(line)
            if "  step" in line and list(tmp_path.rglob("last.ckpt")):
                break
        os.kill(read_json(next(tmp_path.rglob("status.json")))["pid"], signal.SIGKILL)
        output.extend(process.stdout)
        assert process.wait() == 0, "".join(output)
    text = "".join(output)
    assert "killed by SIGKILL, as the kernel does when memory runs out" in text
    assert "resuming at step" in text
    assert "sweep of 2: 2 done" in text


def test_jobs_that_raise_are_killed_or_hang_on_a_cluster(overrides: list[str], tmp_path: Path):
    """Under submitit, whose local executor runs jobs as SLURM would: four that never end by
    themselves, of which two diverge, one is killed and one reaches its limit."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    words = ("hydra/launcher=submitit_local", "protocol.recipe.lr=0.01,1e30", "seed=1,2",
             "protocol.recipe.clip=none", "limit_minutes=0.4", *ENDLESS)  # fmt: skip
    with start("train.py", "-m", *overrides, *words) as process:
        os.kill(_pid_of_a_run_that_trains(tmp_path, "seed-1"), signal.SIGKILL)
        output = process.stdout.read()
    assert process.returncode == 1, output
    assert "sweep of 4: 4 failed" in output
    assert output.count("the run diverged") == 2
    assert "killed by SIGKILL, as the kernel does when memory runs out" in output
    assert "stopped at its limit of 0.4 minutes; the same command resumes it" in output
    states = [read_json(path)["status"] for path in tmp_path.rglob("status.json")]
    assert sorted(states) == ["failed", "failed", "interrupted", "running"]
    assert len(list(tmp_path.rglob("last.ckpt"))) >= 2


def _pid_of_a_run_that_trains(folder: Path, seed: str) -> int:
    for _ in range(600):
        for status in folder.rglob(f"{seed}/status.json"):
            if len(read_metrics(status.with_name("metrics.csv"))) > 3:
                return read_json(status)["pid"]
        time.sleep(0.1)
    raise AssertionError("no run has come to its fourth row of metrics")


def test_a_run_of_another_process_is_left_to_it(overrides: list[str]):
    with start("train.py", *overrides, *ENDLESS) as process:
        for line in process.stdout:
            if "  step" in line:
                break
        done = sweep(overrides, *ENDLESS)
        process.kill()
    assert done.returncode == 0, done.stderr
    assert "sweep of 1: 1 running elsewhere" in done.stdout


def test_runs_side_by_side_on_one_machine(overrides: list[str], tmp_path: Path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    done = sweep(overrides, "hydra/launcher=laptop", "seed=1,2", *SHORT)
    assert done.returncode == 0, done.stderr
    assert "sweep of 2: 2 done" in done.stdout
    assert len(list(tmp_path.rglob("result.json"))) == 2


def test_an_experiment_is_a_sweep_without_being_told(overrides: list[str]):
    """And its jobs, which name it too, are none."""
    fixed = ("attention.dwc=none", "protocol.recipe.lr=0.01", "seed=1,2")
    done = command("train.py", *overrides, "experiment=recipe_control", *fixed, *SHORT)
    assert done.returncode == 0, done.stderr
    assert "sweep of 2: 2 done" in done.stdout


def test_the_summary_names_each_failure():
    outcomes = [
        Outcome(["task=text", "seed=1"], "done"),
        Outcome(["task=text", "seed=2"], "failed", "no disk"),
        Outcome(["task=text", "seed=3"], "skipped"),
    ]
    assert summarise(outcomes) == (
        "sweep of 3: 1 done, 1 finished before, 1 failed\n  failed  seed=2: no disk"
    )
