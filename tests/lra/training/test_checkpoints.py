"""A run that is cut anywhere and started again ends exactly like one that never was."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from lra.base.disk import read_json
from lra.base.versions import PARTS
from lra.runs.folder import read_metrics
from lra.settings.compose import Run, compose
from lra.training import run as runner
from lra.training.checkpoints import Checkpoints

from ..conftest import SMALL, start


class Killed(BaseException):
    """As abrupt as a process can be stopped from inside: nothing may be saved on the way out."""


def only_folder(run: Run) -> Path:
    return next(Path(run.runs_dir).rglob("config.yaml")).parent


def last(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "checkpoints/last.ckpt", weights_only=True)


def assert_same(a: Path, b: Path) -> None:
    first, second = (last(folder)["state_dict"] for folder in (a, b))
    tensors = {key: value for key, value in first.items() if isinstance(value, torch.Tensor)}
    assert [key for key, value in tensors.items() if not torch.equal(value, second[key])] == []
    first, second = (read_json(f / "result.json") for f in (a, b))
    for key in ("score", "stages", "dev", "identity", "run"):
        assert first[key] == second[key], key
    rows = [
        [{k: v for k, v in r.items() if k != "seconds"} for r in read_metrics(f / "metrics.csv")]
        for f in (a, b)
    ]
    assert rows[0] == rows[1]


@pytest.fixture(scope="module")
def reference(data_dir, tmp_path_factory) -> Path:
    run = compose(
        [*SMALL, f"data_dir={data_dir}", f"runs_dir={tmp_path_factory.mktemp('reference')}"]
    )
    runner.train(run)
    return only_folder(run)


def kill_at(monkeypatch: pytest.MonkeyPatch, hook: str, step: int) -> None:
    """Die in `hook` once training has reached `step`, before or after what the hook does."""
    original = getattr(Checkpoints, hook)

    def dying(self: Checkpoints, trainer: pl.Trainer, *rest: object) -> None:
        if hook == "on_train_batch_end" and trainer.global_step == step:
            raise Killed
        original(self, trainer, *rest)
        if hook == "on_validation_end" and trainer.global_step == step:
            raise Killed

    monkeypatch.setattr(Checkpoints, hook, dying)


# Checkpoints are saved after every 4 steps and every evaluation (10), rows of metrics every 5.
MOMENTS = [
    *(("on_train_batch_end", step) for step in (1, 8, 10)),
    ("on_validation_end", 10),
    *(("on_train_batch_end", step) for step in (11, 19, 20, 30)),
    ("on_validation_end", 30),
]


def test_a_killed_run_ends_like_one_that_never_was(small, reference, monkeypatch):
    for hook, step in MOMENTS:
        with monkeypatch.context() as patch:
            kill_at(patch, hook, step)
            with pytest.raises(Killed):
                runner.train(small())
        assert not (only_folder(small()) / "result.json").exists()
    runner.train(small())
    assert_same(only_folder(small()), reference)


def test_a_run_interrupted_with_other_code_is_begun_anew(small, reference, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        kill_at(patch, "on_train_batch_end", 14)
        with pytest.raises(Killed):
            runner.train(small())
    begun = only_folder(small())
    identity = begun.parent.name.partition("-")[0]
    older = begun.parent.rename(begun.parent.with_name(f"{identity}-0ther0de")) / begun.name
    content = {file: file.read_bytes() for file in older.rglob("*.*")}
    capsys.readouterr()
    done = runner.train(small()).parent
    said = capsys.readouterr().out
    assert f"beginning anew, {older} is kept" in said
    assert "resuming" not in said
    assert_same(done, reference)
    assert content == {file: file.read_bytes() for file in older.rglob("*.*")}


@pytest.mark.rest
def test_a_killed_run_is_not_continued_over_a_raised_integer(small, overrides, monkeypatch, capsys):
    """By kill -9. Its checkpoint is kept, and goes on when the integer is what it was."""
    steps, raised = "protocol.recipe.steps=400", replace(PARTS["step"], numerics=2)
    killed, runs = start("train.py", *overrides, steps), Path(small().runs_dir)
    while not (begun := [*runs.rglob("last.ckpt")]) and killed.poll() is None:
        time.sleep(0.005)
    killed.kill()
    killed.wait()
    [older] = (checkpoint.parents[1] for checkpoint in begun)
    assert not (older / "result.json").exists()
    before = (older / "checkpoints/last.ckpt").read_bytes()
    with monkeypatch.context() as patch:
        patch.setitem(PARTS, "step", raised)
        done = runner.train(small(steps)).parent
    said = capsys.readouterr().out
    assert f"numerics of the step is 2, and was 1: beginning anew, {older} is kept" in said
    assert "resuming" not in said
    assert done.parent.name != older.parent.name
    assert (done / "result.json").exists()
    assert (older / "checkpoints/last.ckpt").read_bytes() == before
    assert runner.train(small(steps)).parent == older
    assert "resuming at step" in capsys.readouterr().out


def test_a_finished_run_is_not_trained_again(small, capsys, monkeypatch):
    first = runner.train(small())
    before = {path: path.stat().st_mtime_ns for path in first.parent.rglob("*.*")}
    capsys.readouterr()
    monkeypatch.setattr(runner.RunFolder, "lock", None)  # a disk that can only be read
    assert runner.train(small()) == first
    assert "already finished" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in first.parent.rglob("*.*")}


def test_a_failed_run_is_tried_again(small, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(runner.LRAModule, "training_step", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            runner.train(small())
    folder = only_folder(small())
    status = read_json(folder / "status.json")
    assert (status["status"], status["error"]) == ("failed", "ZeroDivisionError: division by zero")
    runner.train(small())
    assert read_json(folder / "status.json")["status"] == "finished"


@pytest.mark.parametrize(
    ("signum", "during", "how"),
    [
        (signal.SIGTERM, "training_step", "by SIGTERM"),
        (signal.SIGHUP, "training_step", "by SIGHUP"),
        (signal.SIGINT, "test_step", "by SIGINT"),
        (signal.SIGALRM, "training_step", "at its limit of 60 minutes"),
    ],
)
def test_a_signal_writes_a_checkpoint_and_leaves_no_doubt(
    small, reference, monkeypatch, capsys, signum: int, during: str, how: str
):
    """The kernel sends SIGALRM at the limit."""
    signal.signal(  # which nohup, or a shell in the background, lets the tests ignore
        signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL
    )
    step = getattr(runner.LRAModule, during)

    def interrupted(self: pl.LightningModule, *batch: object) -> object:
        if during == "test_step" or self.trainer.global_step == 12:
            os.kill(os.getpid(), signum)
        return step(self, *batch)

    with monkeypatch.context() as patch:
        patch.setattr(runner.LRAModule, during, interrupted)
        with pytest.raises(SystemExit, match=str(128 + signum)):
            runner.train(small("limit_minutes=60"))
    assert f"interrupted {how}; run the same command again to resume" in capsys.readouterr().err
    folder = only_folder(small())
    status = read_json(folder / "status.json")
    assert (status["status"], status["how"]) == ("interrupted", how)
    assert not (folder / "result.json").exists()
    assert last(folder)["global_step"] == (13 if during == "training_step" else 30)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    runner.train(small())
    assert_same(folder, reference)


def test_a_limit_ends_the_preparation_of_data(small, monkeypatch, capsys):
    def endless(*_: object, **__: object) -> None:
        time.sleep(60)

    monkeypatch.setattr(runner, "find_or_prepare", endless)
    began = time.monotonic()
    with pytest.raises(SystemExit, match="142"):
        runner.train(small("limit_minutes=0.01"))
    assert time.monotonic() - began < 30
    said = "interrupted at limit_minutes while preparing its data; run the same command again"
    assert said in capsys.readouterr().err


def test_a_limit_that_is_over_stops_a_run_at_once(small):
    with pytest.raises(SystemExit, match="142"):
        runner.train(small("limit_minutes=1e-9"))
