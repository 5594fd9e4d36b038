"""Launchers when a worker dies, and what they ask of a cluster."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import MissingConfigException
from omegaconf import DictConfig, OmegaConf

from hydra_plugins import lra_launchers
from lra.base import hydras
from lra.base.disk import read_json
from lra.base.errors import UserError
from lra.base.places import CONFIGS
from lra.settings.errors import explain
from lra.sweeps.dry import SLURM, script_of
from lra.sweeps.sweep import Outcome, write_outcome

JOBS = [["seed=1"], ["seed=2"], ["seed=3"]]


def config(tmp_path: Path) -> Any:
    return OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}})


def outcomes(tmp_path: Path) -> list[tuple[str, str]]:
    files = sorted((tmp_path / "outcomes").iterdir())
    return [(o["state"], o["reason"]) for o in map(read_json, files)]


def test_jobs_of_a_dead_joblib_worker_fail(tmp_path, monkeypatch):
    process_executor = pytest.importorskip("joblib.externals.loky.process_executor")
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")

    def die(*_: Any) -> None:
        raise process_executor.TerminatedWorkerError("a worker was killed")

    monkeypatch.setattr(lra_launchers.JoblibLauncher, "launch", die)
    launcher = lra_launchers.LaptopLauncher()
    launcher.config = config(tmp_path)
    write_outcome(launcher.config, str(tmp_path), 1, Outcome(["seed=2"], "done", score=0.5))
    assert [job.return_value for job in launcher.launch(JOBS, 0)] == [0.0, 0.5, 0.0]
    reason = "a worker of joblib died, which ends all others; the same command resumes"
    assert outcomes(tmp_path) == [("failed", reason), ("done", ""), ("failed", reason)]


def test_a_job_that_submitit_loses_is_lost_alone(tmp_path, monkeypatch):
    utils = pytest.importorskip("submitit.core.utils")

    class Task:
        job_id, state, paths = "7_1", "NODE_FAIL", SimpleNamespace(stderr="7_1.err")

        def __init__(self, words: list[str]):
            self.words = words

        def results(self) -> list[JobReturn]:
            if self.words == ["seed=2"]:
                raise utils.UncompletedJobError("no output")
            return [JobReturn(self.words, status=JobStatus.COMPLETED, _return_value=1.0)]

    monkeypatch.setattr(
        "submitit.AutoExecutor.map_array", lambda _, __, words, *___: [*map(Task, words)]
    )
    launcher = lra_launchers.LocalLauncher(submitit_folder=str(tmp_path))
    launcher.config = config(tmp_path)
    assert [job.return_value for job in launcher.launch(JOBS, 0)] == [1.0, 0.0, 1.0]
    assert outcomes(tmp_path) == [("failed", "job 7_1 left no result (NODE_FAIL): 7_1.err")]
    assert launcher.launch([], 0) == []


ONE_GPU = {"nodes": 1, "tasks_per_node": 1, "gpus_per_node": 1}, ()


@pytest.fixture
def submitted(tmp_path, monkeypatch) -> Path:
    """Where an sbatch keeps the script that it is given; it starts nothing."""
    kept = tmp_path / "bin" / "submitted.sh"
    kept.parent.mkdir()
    for name in ("srun", "sbatch"):
        program = kept.with_name(name)
        program.write_text(f'#!/bin/sh\n/bin/cp "$1" {kept}\necho Submitted batch job 7\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(kept.parent))
    return kept


def settings_of_slurm(tmp_path: Path) -> DictConfig:
    """As `hydra/launcher=slurm` has them; this path is quoted in a script."""
    words = ["hydra/launcher=slurm", "hydra.launcher.partition=gpu", "hydra.launcher.qos=low"]
    with initialize_config_dir(config_dir=str(CONFIGS), **hydras.of_base()):
        cfg = compose("train", words, return_hydra_config=True)
    settings = OmegaConf.to_container(cfg, resolve=False)["hydra"]["launcher"]
    place = str(tmp_path / "my runs" / "%j")
    return OmegaConf.create(settings | {"submitit_folder": place, "name": "train"})


def test_what_slurm_is_asked_for(tmp_path, submitted, monkeypatch):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    settings = settings_of_slurm(tmp_path)
    assert settings["_target_"] == SLURM
    more = {"setup": ["module load cuda"], "additional_parameters": {"mail-user": "me@here"}}
    settings.merge_with(more)
    launcher = hydras.instantiate(settings)
    launcher.ask_for(*ONE_GPU)
    launcher.submit([*enumerate(JOBS)])
    asked = submitted.read_text(encoding="utf-8").splitlines()
    for line in (
        "gpus-per-node=1",
        "ntasks-per-node=1",
        "cpus-per-task=8",
        "mem=32GB",
        "time=720",
        "signal=USR2@120",
        "partition=gpu",
        "qos=low",
        "job-name=train",
        "mail-user=me@here",
        "array=0-2%3",
    ):
        assert f"#SBATCH --{line}" in asked
    assert "module load cuda" in asked


def test_jobs_that_slurm_does_not_take_are_one_sentence(tmp_path, submitted, monkeypatch):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    slurm = hydras.instantiate(settings_of_slurm(tmp_path))
    slurm.config = config(tmp_path)
    monkeypatch.setattr(slurm, "asked", lambda _: ONE_GPU)
    sbatch = submitted.with_name("sbatch")
    sbatch.write_text("#!/bin/sh\necho sbatch: error: invalid partition: gpu >&2\nexit 1\n")
    with pytest.raises(UserError, match=r"^no job was submitted: sbatch: error: invalid partition"):
        slurm.launch(JOBS, 0)
    submitted.with_name("srun").unlink()
    with pytest.raises(UserError, match=r"no SLURM on this machine .* on a login node"):
        slurm.launch(JOBS, 0)


@pytest.mark.parametrize("number", [1, 3])
def test_the_script_of_a_dry_run_is_the_one_that_sbatch_gets(tmp_path, submitted, number):
    """Of one job, and of an array."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    settings, before = settings_of_slurm(tmp_path), os.environ["PATH"]
    dry = script_of(settings, JOBS[:number], ONE_GPU)
    assert os.environ["PATH"] == before
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]
    assert not submitted.exists(), "the sbatch of this machine was not asked"
    launcher = hydras.instantiate(settings)
    launcher.ask_for(*ONE_GPU)
    launcher.submit([*enumerate(JOBS[:number])])
    assert submitted.read_text(encoding="utf-8") == dry
    assert f"'{tmp_path}/my runs/" in dry
    assert ("--array=0-2" in dry) is (number == 3)


def test_a_dry_run_needs_a_folder_whose_programs_may_run(tmp_path, submitted, monkeypatch):
    """In another one Python would look for the next sbatch on PATH."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    monkeypatch.setattr(Path, "chmod", lambda *_: None)
    with pytest.raises(UserError, match=r"set TMPDIR to a folder that may$"):
        script_of(settings_of_slurm(tmp_path), JOBS, ONE_GPU)
    assert not submitted.exists()


@pytest.mark.parametrize(
    ("accelerator", "devices", "there", "gpus"),
    [
        ("auto", 1, False, 0),
        ("auto", 1, True, 1),
        ("cpu", 2, True, 0),
        ("gpu", 4, False, 4),
        ("cuda", [0, 3], True, 2),
    ],
)
def test_a_run_asks_for_the_gpus_that_its_trainer_uses(accelerator, devices, there, gpus):
    assert lra_launchers.gpus_of(accelerator, devices, there) == gpus


LAPTOP = {"CPU": 2.0, "memory": 1e9, "node:10.0.0.1": 1.0}
LARGE = {"CPU": 8.0, "GPU": 4.0}


@pytest.mark.parametrize(
    ("options", "machines", "sentence"),
    [
        ({"num_gpus": 1, "num_cpus": 1}, [LAPTOP], "1 GPU and 1 CPU, but .* more than 0 GPU: use"),
        ({"num_gpus": 0, "num_cpus": 3}, [LAPTOP], "3 CPU, but .* more than 2 CPU:"),
        ({"num_gpus": 4, "memory": 5e8}, [LAPTOP, LARGE], "memory, but .* has all of that:"),
        ({"resources": {"fpga": 1}}, [LAPTOP, LARGE], "1 fpga, but .* more than 0 fpga:"),
        ({"num_cpus": 1}, [], "more than 0 CPU"),
        ({"num_gpus": 0, "num_cpus": 2, "max_retries": 1}, [LAPTOP], ""),
        ({"num_gpus": 0.25, "num_cpus": 8}, [LAPTOP, LARGE], ""),
    ],
)
def test_a_run_that_fits_on_no_machine_of_a_ray_cluster_is_refused(
    options: dict[str, Any], machines: list[dict[str, float]], sentence: str
):
    """Ray itself would wait for ever."""
    if not sentence:
        lra_launchers.refuse_too_large(options, machines)
        return
    with pytest.raises(UserError, match=sentence) as refused:
        lra_launchers.refuse_too_large(options, machines)
    assert len(str(refused.value).splitlines()) == 1


def test_a_launcher_whose_extra_is_missing_says_so(monkeypatch):
    absent = MissingConfigException("Could not load it", missing_cfg_file="hydra/sweeper/optuna")
    assert explain(absent) == (
        "hydra/sweeper/optuna needs an extra that is not installed: docs/clusters.md"
    )
    monkeypatch.setitem(sys.modules, "ray", None)
    settings = OmegaConf.create({})
    with pytest.raises(UserError, match=re.escape("pip install 'luna-lra[ray]'")):
        lra_launchers.RayLauncher(init=settings, remote=settings).launch([], 0)
