"""Sweeps: every run is tried, none takes another with it, and the end says how each went."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from lra.base import groups
from lra.base.disk import read_json
from lra.base.errors import UserError
from lra.cli import main
from lra.data.prepare import find_or_prepare
from lra.runs.search import find
from lra.settings.compose import Run, check_settings, compose
from lra.sweeps import sweep
from lra.sweeps.sweep import Outcome, Summary, attempt
from lra.training.run import train

from ..conftest import command, start
from . import slurm

SHORT = ("protocol.recipe.steps=2", "protocol.evaluation.every=2")


@pytest.fixture
def in_this_process(monkeypatch) -> None:
    """The runs of a sweep train here, and not each in a process of its own."""

    def run(_: Run, words: list[str], label: str) -> tuple[int, list[str]]:
        try:
            inside = GlobalHydra.instance().is_initialized()
            run = check_settings(hydra.compose("train", words)) if inside else compose(words)
            return 0, [f"record: {train(run)}"]
        except UserError as error:
            return 2, [f"error: {error}"]

    monkeypatch.setattr(sweep, "run_alone", run)


def test_a_sweep_runs_what_is_not_finished(in_this_process, small, overrides, tmp_path, capsys):
    for seed in (1, 2):
        train(small("attention=linear", f"seed={seed}", *SHORT))
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("result.json")}
    words = [word.replace("=linear", "=linear,uniform") for word in overrides]
    assert main(["train", "-m", *words, "seed=1,2", *SHORT]) == 0
    assert "sweep of 4: 2 done, 2 finished before" in capsys.readouterr().out
    assert len(list(tmp_path.rglob("result.json"))) == 4
    assert all(p.stat().st_mtime_ns == t for p, t in before.items())


def test_a_run_of_another_process_is_left_to_it(in_this_process, small, overrides):
    run = small(*SHORT)
    find_or_prepare(run.task, max_length=512, data_dir=run.data_dir)
    folder = find(run)
    assert folder is not None
    with folder.lock():
        outcome = attempt(run, [*overrides, *SHORT], "#0")
    assert outcome.state == "running elsewhere"


@pytest.mark.parametrize(("retries", "state"), [(0, "failed"), (1, "done")])
def test_a_run_that_is_killed_is_tried_again(
    in_this_process, small, overrides, monkeypatch, capsys, retries: int, state: str
):
    trains, kills = sweep.run_alone, iter([(-signal.SIGKILL, ["step 1"])])
    monkeypatch.setattr(sweep, "run_alone", lambda *a: next(kills, None) or trains(*a))
    outcome = attempt(small(*SHORT, f"retries={retries}"), [*overrides, *SHORT], "#0")
    assert outcome.state == state
    assert capsys.readouterr().err.startswith("#0 killed by SIGKILL, as the kernel does")


def test_an_experiment_may_be_a_sweep_and_its_jobs_are_not(in_this_process, overrides, capsys):
    """Though their words name the experiment too."""
    fixed = ("attention.dwc=none", "protocol.recipe.lr=0.01", "seed=1")
    assert main(["train", *overrides, "experiment=recipe_control", *fixed, *SHORT]) == 0
    assert "sweep of 1: 1 done" in capsys.readouterr().out


def test_a_search_goes_by_the_dev_set(overrides, tmp_path, monkeypatch):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    dev = {}

    def attempt(run: Run, words: list[str], label: str) -> Outcome:
        dev[run.seed] = run.seed / 100
        return Outcome(words, "done", score=dev[run.seed])

    monkeypatch.setattr(sweep, "attempt", attempt)
    search = ("hydra/sweeper=search", "hydra.sweeper.n_trials=3", "seed=range(1,99)")
    assert main(["train", "-m", *overrides, *search]) == 0
    assert len(dev) == 3
    best = OmegaConf.load(next(tmp_path.rglob("optimization_results.yaml")))
    assert (best.best_value, best.best_params.seed) == (max(dev.values()), max(dev))


@pytest.fixture
def ray(monkeypatch) -> Iterator[None]:
    """A token and a folder of the test's own, or Ray would leave a token in the home of whoever
    runs the tests and logs in /tmp/ray."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)
    with TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)  # not tmp_path: names of sockets are short
        yield


LAUNCHERS = {  # what each needs, and its settings; local runs jobs as SLURM would
    "basic": ("hydra", ()),
    "laptop": ("hydra_plugins.hydra_joblib_launcher", ()),
    "local": ("hydra_plugins.hydra_submitit_launcher", ()),
    "ray": (
        "ray",
        (
            "hydra.launcher.init.address=local",
            "hydra.launcher.remote.num_gpus=0",
            "hydra.launcher.remote.num_cpus=0",
        ),
    ),
}


REST = [pytest.param(name, marks=pytest.mark.rest) for name in LAUNCHERS if name != "laptop"]


@pytest.mark.parametrize("launcher", ["laptop", *REST])
def test_a_run_that_fails_takes_no_other_with_it(ray, overrides, tmp_path, launcher: str):
    """Side by side, each in a process of its own."""
    needed, settings = LAUNCHERS[launcher]
    if find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    words = (f"hydra/launcher={launcher}", *settings, "protocol.recipe.lr=1e30,1e-3", *SHORT)
    done = command("train.py", "-m", *overrides, *words)
    assert done.returncode == 1, done.stderr
    assert "sweep of 2: 1 done, 1 failed" in done.stdout
    assert "  failed  protocol.recipe.lr=1e+30: the train loss is nan at step 2" in done.stdout
    assert len(list(tmp_path.rglob("result.json"))) == 1


@pytest.mark.rest
def test_a_job_that_slurm_loses_takes_no_other_with_it(overrides, tmp_path, monkeypatch):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    slurm.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    done = command("train.py", "-m", *overrides, "hydra/launcher=slurm", "seed=1,2", *SHORT)
    assert done.returncode == 1, done.stderr
    assert "sweep of 2: 1 done, 1 failed" in done.stdout
    assert "  failed  seed=2: job 7_1 left no result (NODE_FAIL): " in done.stdout
    assert len(list(tmp_path.rglob("result.json"))) == 1


def process_of_rank(rank: int, place: Path) -> int | None:
    """The run of a task of SLURM, which its server of forks has started."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text().split("\0")
            given = (folder / "environ").read_text().split("\0")
        except OSError:  # it has ended, or is somebody else's
            continue
        of_task = "submitit.core._submit" in words and f"SLURM_PROCID={rank}" in given
        if of_task and any(str(place) in word for word in words):
            below = [int(folder.name)]
            for pid in below:
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                below += map(int, children)
            return below[-1]
    return None


@pytest.mark.rest
def test_a_run_of_two_processes_on_slurm_is_killed_and_goes_on(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """SLURM starts a process for each device; one is killed in the middle, so the job fails as a
    whole, and the same command ends it."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    slurm.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    two = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2")
    steps = ("protocol.recipe.steps=600", "protocol.evaluation.every=300")
    words = ("train.py", "-m", *overrides, "hydra/launcher=slurm", *two, *steps, "seed=1")
    first = start(*words)
    while not [*tmp_path.rglob("last.ckpt")] and first.poll() is None:
        time.sleep(0.05)
    pid = process_of_rank(1, tmp_path)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    said = first.communicate(timeout=200)[0]
    assert first.returncode == 1, said
    assert "sweep of 1: 1 failed" in said
    assert not [*tmp_path.rglob("result.json")]
    again = command(*words)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "sweep of 1: 1 done" in again.stdout
    [result] = tmp_path.rglob("result.json")
    assert read_json(result)["machine"]["processes"] == 2
    logs = [log.read_text() for log in tmp_path.rglob("*_log.out")]
    assert any("resuming at step" in log for log in logs)


def test_what_runs_are_forked_from_exists():
    """multiprocessing is silent about a module that it does not find, and every run would import
    torch again."""
    assert find_spec(sweep.FORKED)


def test_a_run_stops_when_nobody_waits_for_it(small, monkeypatch):
    for alive, seed in ((True, 1), (False, 2)):
        parent = SimpleNamespace(is_alive=lambda alive=alive: alive)
        monkeypatch.setattr(multiprocessing, "parent_process", lambda parent=parent: parent)
        run = small(f"seed={seed}", *SHORT)
        if alive:
            train(run)
    with pytest.raises(SystemExit, match="143"):
        train(run)
    [status] = [read_json(p) for p in Path(run.runs_dir).rglob("seed-2/status.json")]
    assert (status["status"], status["how"]) == ("interrupted", "by SIGTERM")
    assert len(list(Path(run.runs_dir).rglob("seed-2/checkpoints/last.ckpt"))) == 1


def test_every_process_of_a_finished_distributed_run_ends(small, tmp_path, monkeypatch):
    """Under torchrun and srun all of them look; the first one only says so and ends."""
    train(small(*SHORT))
    [checkpoint] = tmp_path.rglob("last.ckpt")
    checkpoint.unlink()
    monkeypatch.setenv("LOCAL_RANK", "1")
    train(small(*SHORT))  # trains, alone, if it does not look
    assert not checkpoint.exists()


def leave_a_process(*facts: Any) -> None:
    """As DDP or a loader does, with the run's output open."""
    os.setsid()
    os.dup2(facts[-1].fileno(), 1)
    os.write(1, f"{subprocess.Popen(['sleep', '600']).pid}\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_run_leaves_behind_is_killed(monkeypatch):
    monkeypatch.setattr(sweep, "_run", leave_a_process)
    code, [process] = sweep.run_alone(SimpleNamespace(callbacks={}), [], "#0")
    assert code == -signal.SIGKILL
    left = Path(f"/proc/{process}/stat")
    while left.exists() and " Z " not in left.read_text(encoding="utf-8"):  # or it is a zombie
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("code", "printed", "reason"),
    [
        (
            1,
            "Traceback ..\n  x = 1\nAError: 1\n\nDuring ..\n\nTraceback ..\n  y()\n  ^^^\n"
            "b.BError: CUDA\nsome advice\n",
            "b.BError: CUDA",
        ),
        (2, "error: one\nerror: two\nwarning\n", "two"),
        (1, "", "exit code 1"),
        (-signal.SIGSEGV, "error: one", "killed by SIGSEGV"),
        (
            142,
            "interrupted at its limit of 5 minutes; run ..\n",
            "interrupted at its limit of 5 minutes; run ..",
        ),
    ],
)
def test_the_reason_is_one_line(code: int, printed: str, reason: str):
    assert sweep._reason(code, printed.splitlines()) == reason


def test_a_job_stopped_from_outside_has_an_outcome(tmp_path, monkeypatch):
    """As submitit does when SLURM's limit is near. The job's run finds the user's configs."""
    source = {"provider": groups.PROVIDER, "path": "/configs"}
    runtime = {"config_sources": [{"provider": "main", "path": "/ours"}, source]}
    facts = {
        "job": {"num": 0},
        "overrides": {"task": ["seed=1"]},
        "runtime": runtime,
        "sweep": {"dir": str(tmp_path)},
    }
    cfg = OmegaConf.create({"hydra": facts})
    monkeypatch.setattr(HydraConfig, "get", lambda: cfg.hydra)
    monkeypatch.setattr(sweep, "check_settings", lambda cfg: None)
    monkeypatch.setenv(groups.VARIABLE, "")

    def stop(*_: Any) -> None:
        assert os.environ[groups.VARIABLE] == "/configs"
        raise RuntimeError("timed out\nand more")

    monkeypatch.setattr(sweep, "attempt", stop)
    assert sweep.job(cfg) == 0.0
    outcome = read_json(tmp_path / "outcomes" / "0.json")
    assert (outcome["state"], outcome["reason"]) == ("failed", "RuntimeError: timed out")


def test_a_sweep_without_jobs_or_folder_ends_with_a_sentence(tmp_path, capsys):
    def config(folder: Path) -> Any:
        search = {"sweeper": {"_target_": "a search"}, "overrides": {"task": []}}
        return OmegaConf.create({"hydra": {"sweep": {"dir": str(folder)}, **search}})

    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="2"):
        Summary().on_multirun_end(config(tmp_path))
    with pytest.raises(SystemExit, match="2"):
        Summary().on_multirun_start(config(tmp_path / "file" / "sweep"))
    none, closed = capsys.readouterr().err.splitlines()
    assert "this sweep has no jobs" in none
    assert "error: cannot write to " in closed
