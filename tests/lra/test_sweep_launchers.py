"""What launchers do when the worker of a job is gone, when there is no room, no cluster, no job."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import MissingConfigException
from omegaconf import OmegaConf

from hydra_plugins import lra_waiting
from lra import groups, sweep
from lra.compose import explain, guard
from lra.config import CONFIGS, UserError
from lra.sweep import Outcome, Summary, note, read_outcomes

JOBS = [["seed=1"], ["seed=2"], ["seed=3"]]


def config(tmp_path: Path) -> Any:
    return OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}})


def told(tmp_path: Path) -> list[tuple[str, str]]:
    return [(o.state, o.reason) for o in read_outcomes(tmp_path / "outcomes")]


def test_the_end_of_joblib_s_workers_is_the_end_of_jobs_without_an_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    process_executor = pytest.importorskip("joblib.externals.loky.process_executor")
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")

    def die(*_: Any) -> None:
        raise process_executor.TerminatedWorkerError("a worker was killed")

    monkeypatch.setattr(lra_waiting.JoblibLauncher, "launch", die)
    launcher = lra_waiting.LaptopLauncher()
    launcher.config = config(tmp_path)
    note(str(tmp_path), 1, Outcome(["seed=2"], "done", dev=0.5))
    assert [job.return_value for job in launcher.launch(JOBS, 0)] == [0.0, 0.5, 0.0]
    reason = "a worker of joblib died, which ends the others; the same command goes on"
    assert told(tmp_path) == [("failed", reason), ("done", ""), ("failed", reason)]


def test_a_job_that_submitit_loses_is_lost_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    errors = pytest.importorskip("submitit.core.utils")

    class Task:
        job_id, state, paths = "7_1", "NODE_FAIL", SimpleNamespace(stderr="7_1.err")

        def __init__(self, _: Any, words: list[str], *__: Any):
            self.words = words

        def result(self) -> JobReturn:
            if self.words == ["seed=2"]:
                raise errors.UncompletedJobError("no output")
            return JobReturn(self.words, status=JobStatus.COMPLETED, _return_value=1.0)

    launcher = lra_waiting.LocalLauncher()
    launcher.config = config(tmp_path)
    executor = SimpleNamespace(
        folder=tmp_path, map_array=lambda *columns: [*map(Task, [0] * 3, columns[1])]
    )
    monkeypatch.setattr(launcher, "_executor", lambda: executor)
    assert [job.return_value for job in launcher.launch(JOBS, 0)] == [1.0, 0.0, 1.0]
    assert told(tmp_path) == [("failed", "job 7_1 left no result (NODE_FAIL): 7_1.err")]


@pytest.fixture
def slurm(tmp_path: Path) -> lra_waiting.SlurmLauncher:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    words = ["hydra/launcher=slurm", "hydra.launcher.partition=gpu", f"runs_dir={tmp_path}"]
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIGS)):
        cfg = compose("train", words, return_hydra_config=True)
    params = OmegaConf.to_container(cfg, resolve=False)["hydra"]["launcher"]
    params |= {"submitit_folder": str(tmp_path / "%j"), "name": "train"}
    assert params.pop("_target_") == "hydra_plugins.lra_waiting.SlurmLauncher"
    return lra_waiting.SlurmLauncher(**params)


def test_what_slurm_is_asked_for(
    slurm: lra_waiting.SlurmLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\n", encoding="utf-8")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    asked = slurm._executor()._executor._make_submission_file_text("train", "x").splitlines()
    for line in ("gpus-per-node=1", "ntasks-per-node=1", "cpus-per-task=8", "mem=32GB", "time=720",
                 "signal=USR2@120", "partition=gpu", "job-name=train"):  # fmt: skip
        assert f"#SBATCH --{line}" in asked


def test_where_there_is_no_slurm_a_sentence_says_so(
    slurm: lra_waiting.SlurmLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"no SLURM here .* on a login node"):
        slurm.launch(JOBS, 0)


@pytest.fixture
def one_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    source = {"provider": groups.PROVIDER, "path": "/configs"}
    runtime = {"config_sources": [{"provider": "main", "path": "/ours"}, source]}
    facts = {"job": {"num": 0}, "overrides": {"task": ["seed=1"]}, "runtime": runtime}
    cfg = OmegaConf.merge(config(tmp_path), {"hydra": facts})
    monkeypatch.setattr(HydraConfig, "get", lambda: cfg.hydra)
    monkeypatch.setattr(sweep, "check", lambda cfg: None)
    return cfg


def test_a_job_stopped_from_outside_has_an_outcome(
    one_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As submitit does when SLURM's limit is near. The job's run finds the user's configs."""
    monkeypatch.setenv(groups.VARIABLE, "")

    def stop(*_: Any) -> None:
        assert os.environ[groups.VARIABLE] == "/configs"
        raise RuntimeError("timed out\nand more")

    monkeypatch.setattr(sweep, "attempt", stop)
    assert sweep.job(one_job) == 0.0
    assert told(tmp_path) == [("failed", "RuntimeError: timed out")]


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        ("Traceback (most recent call last):\n  x = 1\nA: 1\n\nDuring handling of the above\n\n"
         "Traceback (most recent call last):\n  y()\n  ^^^\nB: CUDA\nsome advice\n", "B: CUDA"),
        ("loading\nno backend\n\n", "no backend"),
        ("Traceback (most recent call last):\n  x = 1\n", "  x = 1"),  # cut short
        ("error: one\nerror: two\nwarning\n", "two"),
        ("", "exit code 1"),
    ],
)  # fmt: skip
def test_the_reason_is_the_first_line_of_the_error(stderr: str, reason: str):
    assert sweep._reason(1, stderr.splitlines(), None) == reason


def test_what_a_killed_run_leaves_behind_does_not_hold_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A process of DDP or of a loader, which has the run's output open."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, subprocess\n"
        "print(subprocess.Popen(['sleep', '600']).pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(sweep, "TRAIN", (str(script),))
    code, reason = sweep._process([], "#0", None)
    assert code == -signal.SIGKILL
    assert reason.startswith("killed by SIGKILL")
    left = Path(f"/proc/{int(capsys.readouterr().out.split()[1])}/stat")
    while (
        left.exists() and left.read_text(encoding="utf-8").split()[2] != "Z"
    ):  # until somebody reaps it
        time.sleep(0.01)


def test_a_sweep_without_jobs_or_without_a_folder_ends_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit, match="2"):
        Summary().on_multirun_end(config(tmp_path))
    assert "this sweep has no jobs" in capsys.readouterr().err
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="2"):
        Summary().on_multirun_start(config(tmp_path / "file" / "sweep"))
    assert re.match("error: cannot write to .*: mend its permissions", capsys.readouterr().err)

    def full() -> None:  # Hydra, which writes a multirun.yaml
        raise OSError(errno.ENOSPC, "No space left on device")

    assert guard(full) == 2
    assert "error: no space left on the disk: free some" in capsys.readouterr().err


def test_ray_does_not_wait_for_a_machine_that_it_has_not():
    from hydra_plugins.lra_ray import check_room

    node = {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 1.0, "memory": 1e9}}
    dead = {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}
    check_room([dead, node], {"num_gpus": 1, "num_cpus": 4, "max_retries": 0})
    check_room([{"Alive": True, "Resources": {"CPU": 4.0}}], {"num_gpus": 0})
    with pytest.raises(UserError, match="has the 2 GPU and 4 CPU of one job"):
        check_room([dead, node], {"num_gpus": 2, "num_cpus": 4})
    with pytest.raises(UserError, match="has the 1 GPU and 8 CPU of one job"):
        check_room([node], {"num_gpus": 1, "num_cpus": 8})


def test_a_launcher_whose_extra_is_missing_says_so(monkeypatch: pytest.MonkeyPatch):
    absent = MissingConfigException("Could not load it", missing_cfg_file="hydra/sweeper/optuna")
    assert explain(absent) == (
        "hydra/sweeper/optuna needs an extra that is not installed: docs/clusters.md"
    )
    from hydra_plugins.lra_ray import RayLauncher

    monkeypatch.setitem(sys.modules, "ray", None)
    settings = OmegaConf.create({})
    with pytest.raises(UserError, match=re.escape("pip install 'luna-lra[ray]'")):
        RayLauncher(init=settings, remote=settings).launch([], 0)
