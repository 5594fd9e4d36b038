"""A run that is cut anywhere and started again ends exactly like one that never was."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch

from lra import run as runner
from lra.callbacks import Checkpoints, read_metrics
from lra.compose import Run
from lra.disk import read_json

from .conftest import command, start


class Killed(BaseException):
    """As abrupt as a process can be stopped from inside: nothing may be saved on the way out."""


@pytest.fixture
def finish(small: Callable[..., Run]) -> Callable[..., Path]:
    def finish(*more: str) -> Path:
        runner.train(small(*more))
        return folder_of(small(*more))

    return finish


def folder_of(run: Run) -> Path:
    return next(Path(run.runs_dir).rglob("config.yaml")).parent


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


def assert_same(a: Path, b: Path) -> None:
    for key, value in weights(a).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, weights(b)[key]), key
    first, second = (read_json(f / "result.json") for f in (a, b))
    for key in ("test", "test_last", "test_best", "dev", "identity"):
        assert first[key] == second[key], key
    rows = [
        [{k: v for k, v in r.items() if k != "seconds"} for r in read_metrics(f / "metrics.csv")]
        for f in (a, b)
    ]
    assert rows[0] == rows[1]


@pytest.fixture(scope="module")
def reference(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from lra.compose import compose

    from .conftest import SMALL

    run = compose(
        [*SMALL, f"data_dir={data_dir}", f"runs_dir={tmp_path_factory.mktemp('reference')}"]
    )
    runner.train(run)
    return folder_of(run)


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


@pytest.mark.parametrize(
    ("hook", "step"),
    [("on_train_batch_end", s) for s in (1, 4, 5, 8, 9, 10, 11, 13, 20, 24, 29, 30)]
    + [("on_validation_end", s) for s in (10, 20, 30)],
)
def test_a_run_killed_at_any_step_resumes_bit_for_bit(
    small: Callable[..., Run],
    reference: Path,
    monkeypatch: pytest.MonkeyPatch,
    hook: str,
    step: int,
):
    with monkeypatch.context() as patch:
        kill_at(patch, hook, step)
        with pytest.raises(Killed):
            runner.train(small())
    folder = folder_of(small())
    assert not (folder / "result.json").exists()
    runner.train(small())
    assert_same(folder, reference)


def test_a_run_killed_three_times_resumes_bit_for_bit(
    small: Callable[..., Run], reference: Path, monkeypatch: pytest.MonkeyPatch
):
    for step in (6, 14, 27):
        with monkeypatch.context() as patch:
            kill_at(patch, "on_train_batch_end", step)
            with pytest.raises(Killed):
                runner.train(small())
    runner.train(small())
    assert_same(folder_of(small()), reference)


def test_a_finished_run_returns_its_result_without_training(
    small: Callable[..., Run], reference: Path, capsys: pytest.CaptureFixture[str]
):
    first = runner.train(small())
    weights_before = (folder_of(small()) / "checkpoints/last.ckpt").stat().st_mtime_ns
    capsys.readouterr()
    assert runner.train(small()) == first
    assert "already finished" in capsys.readouterr().out
    assert (folder_of(small()) / "checkpoints/last.ckpt").stat().st_mtime_ns == weights_before


@pytest.mark.parametrize("step", [0, 30])
def test_a_run_stops_at_its_limit_and_the_same_command_resumes_it(
    small: Callable[..., Run],
    reference: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    step: int,
):
    """While it trains, or tests what it has trained."""
    if step:
        with monkeypatch.context() as patch:
            kill_at(patch, "on_validation_end", step)
            with pytest.raises(Killed):
                runner.train(small())
    with pytest.raises(SystemExit, match="142"):
        runner.train(small("limit_minutes=1e-6"))
    how = "at its limit of 1e-06 minutes"
    assert f"interrupted {how}; run the same command again to resume" in capsys.readouterr().err
    status = read_json(folder_of(small()) / "status.json")
    assert (status["status"], status["how"]) == ("interrupted", how)
    checkpoint = folder_of(small()) / "checkpoints/last.ckpt"
    assert torch.load(checkpoint, weights_only=True)["global_step"] == max(step, 1)
    runner.train(small("limit_minutes=600"))
    assert_same(folder_of(small()), reference)


def test_a_failed_run_is_tried_again(small: Callable[..., Run], monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(runner.LRAModule, "training_step", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            runner.train(small())
    status = read_json(folder_of(small()) / "status.json")
    assert status["status"] == "failed"
    assert "ZeroDivisionError" in status["error"]
    assert "Traceback" in (folder_of(small()) / "error.txt").read_text(encoding="utf-8")
    runner.train(small())
    assert read_json(folder_of(small()) / "status.json")["status"] == "finished"


def test_another_seed_trains_another_network(finish: Callable[..., Path], reference: Path):
    other = weights(finish("seed=2"))
    assert any(
        not torch.equal(v, other[k]) for k, v in weights(reference).items() if torch.is_tensor(v)
    )


def wait_for(process, text: str) -> None:
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"the run ended without printing {text!r}")


LONG = ("protocol.recipe.steps=900", "protocol.evaluation.every=300", "trainer.print_every=0",
        "trainer.checkpoint_every=7")  # fmt: skip


@pytest.fixture(scope="module")
def long_reference(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from lra.compose import compose

    from .conftest import SMALL

    words = [*SMALL, *LONG, f"data_dir={data_dir}", f"runs_dir={tmp_path_factory.mktemp('long')}"]
    done = command("train.py", *words)
    assert done.returncode == 0, done.stderr
    return folder_of(compose(words))


def test_kill_9_at_a_random_moment_resumes_bit_for_bit(
    overrides: list[str], train, long_reference: Path, tmp_path: Path
):
    moment = random.Random()
    for _ in range(2):
        with start("train.py", *overrides, *LONG) as process:
            wait_for(process, "  step")
            time.sleep(moment.uniform(0, 1.0))
            process.kill()
    assert not list(tmp_path.rglob("result.json"))
    done = train(*LONG)
    assert done.returncode == 0, done.stderr
    assert "resuming at step" in done.stdout
    assert_same(next(tmp_path.rglob("result.json")).parent, long_reference)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_writes_a_checkpoint_and_leaves_no_doubt(
    overrides: list[str], train, long_reference: Path, tmp_path: Path, signum: int, code: int
):
    with start("train.py", *overrides, *LONG) as process:
        wait_for(process, "  step")
        os.kill(process.pid, signum)
        output = process.stdout.read()
    assert process.returncode == code, output
    assert "run the same command again to resume" in output
    folder = next(tmp_path.rglob("status.json")).parent
    assert read_json(folder / "status.json")["status"] == "interrupted"
    assert not (folder / "result.json").exists()
    assert (folder / "checkpoints/last.ckpt").exists()
    done = train(*LONG)
    assert done.returncode == 0, done.stderr
    assert "resuming at step" in done.stdout
    assert_same(folder, long_reference)


def test_a_signal_while_testing_is_an_interruption_too(
    small: Callable[..., Run], reference: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        patch.setattr(
            runner.LRAModule, "test_step", lambda *_: os.kill(os.getpid(), signal.SIGTERM)
        )
        with pytest.raises(SystemExit, match="143"):
            runner.train(small())
    assert read_json(folder_of(small()) / "status.json")["status"] == "interrupted"
    runner.train(small())
    assert_same(folder_of(small()), reference)


def test_of_two_processes_one_runs_and_the_other_says_so(overrides: list[str], train):
    with start("train.py", *overrides, *LONG) as process:
        wait_for(process, "  step")
        process.send_signal(signal.SIGSTOP)  # or it might be done before the other asks
        second = train(*LONG)
        process.kill()
    assert second.returncode == 2
    assert f"is being run by process {process.pid} on" in second.stderr
