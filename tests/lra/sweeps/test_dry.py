"""`--dry`: the script for SLURM, on a machine without it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lra.cli import main

Capture = pytest.CaptureFixture[str]
SLURM = "hydra/launcher=slurm"


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    return ["experiment=demo", f"runs_dir={tmp_path / 'runs'}", f"data_dir={tmp_path / 'data'}"]


def test_a_dry_run_prints_the_script_and_leaves_nothing(
    words: list[str],
    tmp_path: Path,
    capsys: Capture,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    caplog.set_level("INFO")  # as Hydra's own logging
    monkeypatch.setenv("PATH", str(tmp_path))  # with neither srun nor sbatch
    more = [
        SLURM,
        "trainer=gpu",
        "hydra.launcher.partition=short",
        "hydra.launcher.array_parallelism=2",
    ]
    assert main(["train", "-m", *words, *more, "attention=luna,linear", "seed=1,2", "--dry"]) == 0
    script, jobs = capsys.readouterr()
    for line in (
        "array=0-3%2",
        "partition=short",
        "gpus-per-node=1",
        "time=720",
        "signal=USR2@120",
        "job-name=train",
    ):
        assert f"\n#SBATCH --{line}\n" in script
    assert f"{tmp_path}/runs/sweeps/" in script, "where the sweep would be"
    assert jobs.splitlines() == [
        "#0 attention=luna seed=1",
        "#1 attention=luna seed=2",
        "#2 attention=linear seed=1",
        "#3 attention=linear seed=2",
        "4 jobs, of which nothing is submitted; the files that this script reads are written "
        "when the same words are given without --dry",
    ]
    assert list(tmp_path.iterdir()) == []
    assert "sweep output dir" not in caplog.text, "there is none"
    monkeypatch.undo()
    assert script.startswith("#!/bin/bash\n")
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("more", "lines"),
    [
        (["trainer=gpu"], ["nodes=1", "ntasks-per-node=1", "gpus-per-node=1"]),
        (
            ["trainer=gpu", "trainer.strategy=ddp", "trainer.devices=4", "trainer.num_nodes=2"],
            ["nodes=2", "ntasks-per-node=4", "gpus-per-node=4"],
        ),
        (["trainer=gpu", "trainer.devices=[1,3]"], ["ntasks-per-node=2", "gpus-per-node=2"]),
        (["trainer=cpu", "trainer.devices=2"], ["ntasks-per-node=2"]),
        (
            ["trainer=gpu", "trainer.devices=2", "hydra.launcher.gres=gpu:a100:2"],
            ["ntasks-per-node=2", "gres=gpu:a100:2"],
        ),
    ],
)
def test_the_trainer_decides_what_a_job_asks_for(
    words: list[str], capsys: Capture, more: list[str], lines: list[str]
):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    assert main(["train", "--dry", "-m", *words, SLURM, "attention=luna", "seed=1,2", *more]) == 0
    script = capsys.readouterr().out
    for line in lines:
        assert f"\n#SBATCH --{line}\n" in script
    asked = any(line.startswith("gpus-per-node") for line in lines)
    assert asked == ("gpus-per-node" in script)
    assert ("--kill-on-bad-exit=1" in script) == ("ntasks-per-node=1" not in lines)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["-m", "seed=1,2"], "script of a sweep on SLURM: add hydra/launcher=slurm"),
        (["-m", "seed=1,2", "hydra/launcher=laptop"], "add hydra/launcher=slurm"),
        ([SLURM], "without -m the run is done here, not by SLURM: add -m"),
        (["-m", SLURM, "attention=lunar"], "did you mean luna"),
        (
            ["-m", SLURM, "trainer.devices=4", "hydra.launcher.gpus_per_node=2"],
            "hydra.launcher.gpus_per_node=2 contradicts trainer.devices",
        ),
        (
            ["-m", SLURM, "trainer.devices=4", "hydra.launcher.tasks_per_node=1"],
            "hydra.launcher.tasks_per_node=1 contradicts trainer.devices",
        ),
        (["-m", SLURM, "trainer=gpu", "hydra.launcher.nodes=2"], "contradicts trainer.num_nodes"),
        (["-m", SLURM, "trainer=cpu", "hydra.launcher.gpus_per_node=1"], "by which it is 0"),
        (
            ["-m", SLURM, "trainer=gpu", "trainer.devices=2", "hydra.launcher.gres=gpu:1"],
            "hydra.launcher.gres=gpu:1 contradicts",
        ),
        (["-m", SLURM, "trainer.devices=1,2"], "start one sweep for each"),
        (["-m", SLURM, "seed=1,-2"], "seed=-2 is out of range"),
        (["-m", SLURM, "attention = luna"], "write key=value, without spaces"),
        ([SLURM, "--cfg", "job"], "for the settings of lra train, and not for --cfg"),
    ],
)
def test_what_has_no_script_is_one_sentence(
    words: list[str], capsys: Capture, more: list[str], sentence: str
):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    assert main(["train", "--dry", *words, *more]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_a_conversion_has_no_script(capsys: Capture):
    assert main(["convert", "-m", "task=mrpc", "seed=1,2", "--dry"]) == 2
    assert "for the settings of lra train, and not for lra convert" in capsys.readouterr().err
