"""Sweeps: every run is tried, none takes another with it, and the end says how each went."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from omegaconf import OmegaConf

from lra import parent
from lra import sweep as sweeps
from lra.callbacks import read_metrics
from lra.compose import OVERRIDES
from lra.config import PACKAGE
from lra.disk import read_json
from lra.run import train
from lra.sweep import Outcome, summarise

from .conftest import SMALL, command, start

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


SUBMITIT = ("hydra/launcher=local",)
RAY = (
    "hydra/launcher=ray",
    "hydra.launcher.init.address=local",
    "hydra.launcher.remote.num_gpus=0",
    "hydra.launcher.remote.num_cpus=0",
)


@pytest.fixture(scope="module")
def limit(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Minutes in which a run trains, three at a time, however busy this machine is."""
    begin = time.monotonic()
    folders = (f"data_dir={data_dir}", f"runs_dir={tmp_path_factory.mktemp('runs')}")
    assert command("train.py", *SMALL, *SHORT, *folders).returncode == 0
    return f"{max(0.4, 5 * (time.monotonic() - begin) / 60):.1f}"


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A token and a folder of the test's own, or Ray would leave a token in the home of whoever
    runs the tests and logs in /tmp/ray."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)
    with TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)  # not tmp_path: names of sockets are short
        yield


def test_jobs_that_raise_are_killed_or_hang_under_submitit(
    limit: str, overrides: list[str], tmp_path: Path
):
    """Its local executor runs jobs as SLURM would."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    check_that_failures_stay_alone(SUBMITIT, limit, overrides, tmp_path)


def test_jobs_that_raise_are_killed_or_hang_under_ray(
    ray: None, limit: str, overrides: list[str], tmp_path: Path
):
    check_that_failures_stay_alone(RAY, limit, overrides, tmp_path)


def check_that_failures_stay_alone(
    launcher: tuple[str, ...], limit: str, overrides: list[str], tmp_path: Path
) -> None:
    """Three jobs that never end by themselves: one diverges, one is killed, one reaches its
    limit."""
    words = ("protocol.recipe.lr=0.01,0.02,1e30", "protocol.recipe.clip=none")
    words += (*ENDLESS, f"limit_minutes={limit}")
    with start("train.py", "-m", *overrides, *launcher, *words) as process:
        os.kill(_pid_of_a_run_that_trains(tmp_path, process), signal.SIGKILL)
        output = process.stdout.read()
    assert process.returncode == 1, output
    assert "sweep of 3: 3 failed" in output
    failures = "\n".join(line for line in output.splitlines() if line.startswith("  failed  "))
    assert "the run diverged" in failures
    assert "killed by SIGKILL, as the kernel does when memory runs out" in failures
    assert f"interrupted at its limit of {float(limit):g} minutes; " in failures
    states = [read_json(path)["status"] for path in tmp_path.rglob("status.json")]
    assert sorted(states) == ["failed", "interrupted", "running"]
    assert len(list(tmp_path.rglob("last.ckpt"))) >= 1


def _pid_of_a_run_that_trains(folder: Path, sweep: subprocess.Popen[str]) -> int:
    while sweep.poll() is None:
        for status in folder.rglob("status.json"):
            if len(read_metrics(status.with_name("metrics.csv"))) > 3:
                return read_json(status)["pid"]
        time.sleep(0.1)
    raise AssertionError(f"no run came to its fourth row of metrics:\n{sweep.stdout.read()}")


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


def test_a_sweep_that_is_killed_takes_its_workers_with_it(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Joblib's would go on to the third job."""
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    monkeypatch.setenv("JOBLIB_TEMP_FOLDER", str(tmp_path))  # which it would leave in /dev/shm
    words = ("hydra/launcher=laptop", "hydra.launcher.n_jobs=2", "seed=1,2,3")
    with start("train.py", "-m", *overrides, *ENDLESS, *words) as process:
        try:
            run = _pid_of_a_run_that_trains(tmp_path, process)
        finally:
            process.kill()
        process.stdout.read()  # ends when its workers have, whose output it is too
    [status] = [s for p in tmp_path.rglob("status.json") if (s := read_json(p))["pid"] == run]
    assert (status["status"], status["how"]) == ("interrupted", "by SIGTERM")
    assert list(tmp_path.rglob("last.ckpt"))
    assert not list(tmp_path.rglob("seed-3/status.json"))


def test_a_run_stops_when_nobody_waits_for_it(small, monkeypatch: pytest.MonkeyPatch):
    run = small()
    monkeypatch.setenv(parent.VARIABLE, str(os.getppid()))  # alive: it trains to its end
    train(run)
    monkeypatch.setenv(parent.VARIABLE, str(os.getpid()))  # no parent of this process
    with pytest.raises(SystemExit, match="143"):
        train(small("seed=2"))
    [status] = [read_json(p) for p in Path(run.runs_dir).rglob("seed-2/status.json")]
    assert (status["status"], status["how"]) == ("interrupted", "by SIGTERM")
    assert len(list(Path(run.runs_dir).rglob("seed-2/checkpoints/last.ckpt"))) == 1


def test_a_child_runs_the_code_of_its_parent(tmp_path: Path):
    """Whatever lies in the folder where it starts."""
    (tmp_path / "lra").mkdir()
    (tmp_path / "lra" / "__init__.py").touch()
    code = [sys.executable, "-c", "import lra; print(lra.__file__)"]
    options = {"cwd": tmp_path, "env": parent.environment(), "text": True}
    assert subprocess.check_output(code, **options).strip() == str(PACKAGE / "__init__.py")


def test_every_process_of_a_finished_distributed_run_ends(
    small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Under torchrun and srun all of them look; the first one only says so and ends."""
    train(small(*SHORT))
    [checkpoint] = tmp_path.rglob("last.ckpt")
    checkpoint.unlink()
    monkeypatch.setenv("LOCAL_RANK", "1")
    train(small(*SHORT))  # trains, alone, if it does not look
    assert not checkpoint.exists()


def test_a_search_goes_by_the_dev_set(overrides: list[str], tmp_path: Path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    search = ("hydra/sweeper=search", "hydra.sweeper.n_trials=2", "seed=range(1,99)")
    done = sweep(overrides, *search, *SHORT)
    assert done.returncode == 0, done.stderr
    assert "sweep of 2: 2 done" in done.stdout
    results = [read_json(path) for path in tmp_path.rglob("result.json")]
    dev = [r["dev"]["accuracy"] for r in results]
    assert len(set(dev)) == 2
    assert max(dev) not in [r["test"]["accuracy"] for r in results]
    found = OmegaConf.load(next(tmp_path.rglob("optimization_results.yaml")))
    assert found.best_value == max(dev)
    assert found.best_params.seed == results[dev.index(max(dev))]["seed"]


def test_a_search_that_finds_nothing_ends_like_any_sweep(overrides: list[str]):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    search = ("hydra/sweeper=search", "hydra.sweeper.n_trials=2", "seed=choice(no,none)")
    done = sweep(overrides, *search)
    assert done.returncode == 1
    assert "sweep of 2: 2 failed" in done.stdout


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


def test_a_job_does_not_get_the_words_of_the_environment_again(monkeypatch: pytest.MonkeyPatch):
    """They are among its own words: seed=1,2 would start a sweep in each job."""
    seen = {}

    def start(words: list[str], **options: Any) -> None:
        seen.update(options["env"])
        raise OSError

    monkeypatch.setattr(sweeps.subprocess, "Popen", start)
    monkeypatch.setenv(OVERRIDES, "seed=1,2")
    with pytest.raises(OSError):
        sweeps._process([], "#0", None)
    assert "LRA_PARENT" in seen
    assert OVERRIDES not in seen
