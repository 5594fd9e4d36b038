"""What a run says, leaves behind, and answers when something is wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from pytorch_lightning.loggers.logger import Logger

from lra import loggers
from lra import run as runner
from lra.callbacks import read_metrics
from lra.compose import Run
from lra.config import UserError
from lra.disk import read_json
from lra.records import load
from lra.report import leaderboard
from lra.report.specs import TableSpec
from lra.runs import RunFolder, identity

from .conftest import SMALL, command, environment


def folder_of(run: Run) -> Path:
    """The folder that was written last."""
    configs = Path(run.runs_dir).rglob("config.yaml")
    return max(configs, key=lambda path: path.stat().st_mtime_ns).parent


@pytest.fixture(scope="module")
def finished(data_dir: Path, tmp_path_factory: pytest.TempPathFactory):
    """One run through the real command line: its output and its folder."""
    runs = tmp_path_factory.mktemp("finished")
    words = [*SMALL, f"data_dir={data_dir}", f"runs_dir={runs}", "trainer.print_every=0"]
    done = command("train.py", *words, "compute=report", "compute.reference=uniform")
    assert done.returncode == 0, done.stderr
    return done.stdout, next(runs.rglob("result.json")).parent


def test_the_output_tells_each_phase_and_ends_with_the_record(finished):
    output, folder = finished
    lines = output.strip().splitlines()
    for phase in ("task ", "attention ", "compute ", "training ", "run "):
        assert any(line.startswith(phase) for line in lines), phase
    assert any(
        "loss" in line and "acc" in line and "steps/s" in line and "left" in line for line in lines
    )
    assert any("dev acc" in line for line in lines)
    assert lines[-1] == f"record: {folder / 'result.json'}"


def test_the_folder_spells_the_run(finished):
    _, folder = finished
    task, protocol, model, attention, identity, seed = folder.parts[-6:]
    assert (task, protocol, model, attention, seed) == (
        "listops",
        "luna",
        "small",
        "linear",
        "seed-1",
    )
    assert read_json(folder / "result.json")["identity"] == identity
    names = {p.name for p in folder.iterdir()}
    assert names == {
        "config.yaml",
        "metrics.csv",
        "status.json",
        "result.json",
        "checkpoints",
        "lock",
    }
    assert {p.name for p in (folder / "checkpoints").iterdir()} <= {"last.ckpt", "best.ckpt"}


def test_the_record_holds_what_a_table_needs(finished):
    record = read_json(finished[1] / "result.json")
    assert record["status"] == "finished"
    assert record["schema"] == 1
    assert record["protocol"] == {"name": "luna", "version": 1}
    assert record["attention"]["name"] == "linear"
    assert record["steps"] == 30
    assert record["batch"] == 8
    assert record["compute"]["reference"]["attention"] == "uniform"
    assert record["compute"]["reference"]["flops"] > 1
    assert record["data"]["source"] == "tiny"
    assert len(record["data"]["fingerprint"]) >= 16
    assert 0 <= record["test"]["accuracy"] <= 1
    assert sum(record["test"]["predicted"]) == record["test"]["examples"]
    assert 0 < record["data"]["majority"] < 1
    assert record["steps_per_second"] > 0
    assert record["peak_memory_mib"] > 0
    assert record["versions"]["torch"] == torch.__version__
    assert record["machine"]["kind"] == "cpu"
    assert record["machine"]["threads"] == 1
    assert {"revision", "dirty"} == set(record["git"])
    assert {"started", "finished"} == set(record["times"])


def test_metrics_have_a_row_every_interval_and_every_evaluation(finished):
    rows = read_metrics(finished[1] / "metrics.csv")
    assert [int(r["step"]) for r in rows if r["train_loss"]] == [5, 10, 15, 20, 25, 30]
    assert [int(r["step"]) for r in rows if r["dev_accuracy"]] == [10, 20, 30]


def test_the_checkpoint_holds_only_tensors_and_plain_values(finished):
    checkpoint = torch.load(finished[1] / "checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 30


def test_the_reported_checkpoint_is_the_best_on_dev(finished):
    record = read_json(finished[1] / "result.json")
    rows = read_metrics(finished[1] / "metrics.csv")
    dev = {int(r["step"]): float(r["dev_accuracy"]) for r in rows if r["dev_accuracy"]}
    assert record["test"]["select"] == "best"
    assert record["dev"]["accuracy"] == pytest.approx(max(dev.values()), abs=1e-6)
    assert dev[record["test"]["step"]] == max(dev.values())


def test_the_test_accuracy_is_that_of_the_stored_weights(finished, small: Callable[..., Run]):
    """Recomputed from best.ckpt and the arrays, without Lightning and in other batches."""
    from lra.data.prepare import find_or_prepare

    record, run = read_json(finished[1] / "result.json"), small()
    module = runner.build(run)
    module.load_state_dict(
        torch.load(finished[1] / "checkpoints/best.ckpt", weights_only=True)["state_dict"]
    )
    module.eval()
    split = find_or_prepare(
        run.task, max_length=run.protocol.data.max_length, data_dir=run.data_dir
    ).split("test")
    hits = 0
    index = np.arange(len(split))
    for ids, n, label in zip(split.ids(index), split.lengths(index), split.labels, strict=True):
        hits += int(module(torch.from_numpy(ids[:n].astype(np.int64))[None]).argmax()) == label
    assert record["test"]["accuracy"] == pytest.approx(hits / len(split.labels), abs=1e-6)


def test_a_protocol_may_report_the_last_checkpoint(small: Callable[..., Run]):
    runner.train(small("protocol.evaluation.select=last"))
    record = read_json(next(Path(small().runs_dir).rglob("result.json")))
    assert record["test"]["select"] == "last"
    assert record["test"]["step"] == 30


def test_nothing_is_kept_as_best_before_select_after(small: Callable[..., Run]):
    runner.train(small("protocol.evaluation.select_after=1.0"))
    record = read_json(next(Path(small().runs_dir).rglob("result.json")))
    assert record["test_best"] is None
    assert record["test"]["select"] == "last"


# ---------------------------------------------------------------------- bad days


def stopped(small: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, step: int = 15) -> Path:
    """A run that died after step 12's checkpoint."""
    from .test_resume import Killed, kill_at

    with monkeypatch.context() as patch:
        kill_at(patch, "on_train_batch_end", step)
        with pytest.raises(Killed):
            runner.train(small())
    return folder_of(small())


def test_a_truncated_checkpoint_is_named(small, train, monkeypatch: pytest.MonkeyPatch):
    last = stopped(small, monkeypatch) / "checkpoints/last.ckpt"
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])
    done = train()
    assert done.returncode == 2
    assert f"{last} is damaged" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_checkpoint_of_another_run_is_refused(
    small, train, finished, monkeypatch: pytest.MonkeyPatch
):
    last = stopped(small, monkeypatch) / "checkpoints/last.ckpt"
    shutil.copy(finished[1] / "checkpoints/last.ckpt", last)
    done = train("seed=1")
    same = read_json(finished[1] / "result.json")["identity"]
    assert last.parent.parent.parent.name == same, (
        "same config: the identity agrees and it is accepted"
    )
    assert done.returncode == 0
    other = stopped(lambda *more: small("model.mlp_dim=32"), monkeypatch) / "checkpoints/last.ckpt"
    shutil.copy(finished[1] / "checkpoints/last.ckpt", other)
    done = train("model.mlp_dim=32")
    assert done.returncode == 2
    assert f"{other} belongs to run {same}" in done.stderr


def test_a_damaged_record_is_named(small, train):
    runner.train(small())
    record = folder_of(small()) / "result.json"
    record.write_text(record.read_text(encoding="utf-8")[:50], encoding="utf-8")
    done = train()
    assert done.returncode == 2
    assert f"{record} is damaged" in done.stderr


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount a small file system; tests that need one skip where mounting is not allowed."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        path = tmp_path / f"disk{len(mounted)}"
        path.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True
        )
        if done.returncode:
            pytest.skip("mounting a tmpfs needs privileges")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", str(path)], check=True)


def test_a_full_disk_is_one_sentence_and_the_run_resumes(train, tiny_disk):
    disk = tiny_disk("size=64k")
    done = train(f"runs_dir={disk}/runs")
    assert done.returncode == 2, done.stderr
    assert "no space left on the disk" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(disk.rglob("result.json"))
    assert not list(disk.rglob("*.tmp*"))
    subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
    done = train(f"runs_dir={disk}/runs")
    assert done.returncode == 0, done.stderr


def test_a_read_only_folder_is_one_sentence(train, tiny_disk):
    disk = tiny_disk("size=1m")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    done = train(f"runs_dir={disk}/runs")
    assert done.returncode == 2
    assert "(Read-only file system)" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_folder_is_one_sentence(train, tmp_path: Path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    if os.access(closed, os.W_OK):  # root writes everywhere: see the read-only test above
        pytest.skip("permissions do not bind this user")
    done = train(f"runs_dir={closed}/runs")
    assert done.returncode == 2
    assert "(Permission denied)" in done.stderr


def test_wandb_without_a_key_are_one_sentence(train, tmp_path: Path):
    clean = {k: v for k, v in environment().items() if not k.startswith("WANDB_API")}
    clean |= {"HOME": str(tmp_path), "NETRC": str(tmp_path / "none")}
    done = train("logger=[csv,wandb]", "logger.wandb.mode=online", env=clean)
    assert done.returncode == 2, done.stderr
    assert "wandb has no API key: run `wandb login`" in done.stderr
    assert "Traceback" not in done.stderr


def test_wandb_offline_writes_its_record(train, tmp_path: Path):
    done = train("logger=wandb")
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("offline-run-*/run-*.wandb"))


class Recorder(Logger):
    """What reaches a logger: (step, names)."""

    name = version = "recorder"

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, tuple[str, ...]]] = []

    def log_hyperparams(self, *_: object) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        assert step is not None
        self.rows.append((step, tuple(metrics)))


def test_every_logger_gets_each_value_once(small: Callable[..., Run], monkeypatch):
    recorders = [Recorder(), Recorder()]
    monkeypatch.setattr(runner, "build_loggers", lambda *_: recorders)
    run = small("trainer.log_every=15")
    runner.train(run)
    training, dev = (
        ("train_loss", "train_accuracy", "lr"),
        ("dev_loss", "dev_accuracy", "dead_rows"),
    )
    best = read_json(next(Path(run.runs_dir).rglob("result.json")))["test"]["step"]
    assert [r for r in recorders[0].rows if r[1][0] != "test_loss"] == [
        (10, dev), (15, training), (20, dev), (30, training), (30, dev)
    ]  # fmt: skip
    assert recorders[0].rows[-1] == (best, ("test_loss", "test_accuracy"))
    assert recorders[0].rows == recorders[1].rows


def test_tensorboard_and_wandb_can_be_on_together(small: Callable[..., Run], monkeypatch):
    run = small("logger=[wandb,tensorboard]", "logger.wandb.project=mine")
    assert run.logger.wandb is not None
    assert (run.logger.wandb.project, run.logger.tensorboard, run.logger.csv) == ("mine", {}, None)
    monkeypatch.setattr(loggers, "_wandb", lambda *_: "wandb")
    monkeypatch.setattr("pytorch_lightning.loggers.TensorBoardLogger", lambda *_, **__: "board")
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda name: name)
    assert loggers.build(run, RunFolder(run, "data")) == ["wandb", "board"]
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'luna-lra\[tensorboard\]'"):
        loggers.build(run, RunFolder(run, "data"))


def test_two_processes_train_what_one_does(small: Callable[..., Run], train, tmp_path: Path):
    """Over gloo, with the same global batch; without dropout, whose draws are each process's: for
    their sake it is another run, with a row of its own."""
    still = ("model.dropout=0", "model.attention_dropout=0")
    runner.train(small(*still))
    two = ("trainer=ddp", "trainer.accelerator=cpu", f"runs_dir={tmp_path / 'two'}")
    done = train(*still, *two)
    assert done.returncode == 0, done.stderr
    one, two = (read_metrics(next((tmp_path / d).rglob("metrics.csv"))) for d in ("runs", "two"))
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        for key in ("train_loss", "dev_loss", "dev_accuracy", "lr"):
            if a[key]:
                assert float(a[key]) == pytest.approx(float(b[key]), rel=1e-3), (a["step"], key)
    first, second = records = [load([tmp_path / d])[0] for d in ("runs", "two")]
    assert second["machine.processes"] == second["settings.processes"] == 2
    assert "processes" not in first["settings"]
    assert first["test.examples"] == second["test.examples"]
    assert first["identity"] == identity(small(*still), first["data.fingerprint"])
    same = small(*still, "trainer.devices=2")
    assert second["identity"] == identity(same, first["data.fingerprint"])
    labels = {row.label for row in leaderboard.build(TableSpec(name="t", title="t"), records).rows}
    assert labels == {"linear", "linear processes=2"}


def test_a_batch_that_does_not_split_over_devices_is_refused(train):
    done = train("trainer=ddp", "trainer.accelerator=cpu", "protocol.recipe.batch=7")
    assert done.returncode != 0
    assert "a batch of 7 cannot be split evenly over 2 processes" in done.stderr


def test_the_table_shows_the_runs_beside_the_majority_class(finished):
    done = command("-m", "lra", "table", "--runs", str(finished[1].parents[5]))
    assert done.returncode == 0, done.stderr
    assert "linear" in done.stdout
    assert "majority class" in done.stdout
    record = read_json(finished[1] / "result.json")
    assert f"{record['test']['accuracy']:.1%}" in done.stdout


def test_a_table_of_nothing_is_one_sentence(tmp_path: Path):
    done = command("-m", "lra", "table", "--runs", str(tmp_path))
    assert done.returncode == 2
    assert "holds no finished run" in done.stderr


def test_float16_on_a_cpu_is_refused_rather_than_replaced(small: Callable[..., Run]):
    with pytest.raises(UserError, match=r"precision 16-mixed needs a GPU: .*32-true"):
        runner.train(small("trainer.precision=16-mixed"))


def test_bfloat16_trains_and_is_another_run(small: Callable[..., Run]):
    runner.train(small("trainer.precision=bf16-mixed"))
    runner.train(small())
    records = [read_json(p) for p in Path(small().runs_dir).rglob("result.json")]
    assert {r["precision"] for r in records} == {"32-true", "bf16-mixed"}
    assert len({r["identity"] for r in records}) == 2


def test_paths_devices_and_loggers_do_not_change_the_identity(small: Callable[..., Run]):
    same = (
        "trainer.log_every=7",
        "logger=wandb",
        "runs_dir=elsewhere",
        "trainer.devices=[3]",
        "seed=5",
    )
    assert identity(small(), "data") == identity(small(*same), "data")


def test_how_many_processes_train_is_part_of_the_identity(small: Callable[..., Run]):
    four = ("trainer.devices=4", "trainer.devices=[0,1,2,3]", "trainer.num_nodes=4")
    [found] = {identity(small(word), "data") for word in four}
    assert found not in (identity(small(), "data"), identity(small("trainer.devices=2"), "data"))
    with pytest.raises(UserError, match=r"trainer\.devices=auto is out of range: .* a number"):
        small("trainer.devices=auto")


@pytest.mark.parametrize(
    "change",
    [
        "model.mlp_dim=32",
        "attention.eps=1e-5",
        "protocol.recipe.lr=0.02",
        "protocol.data.mask=nonzero",
        "budget=0.5",
        "attention.dwc=conv1d",
    ],
)
def test_whatever_decides_a_result_changes_the_identity(small: Callable[..., Run], change: str):
    assert identity(small(), "data") != identity(small(change), "data")


def test_other_data_are_another_run(small: Callable[..., Run]):
    assert identity(small(), "data") != identity(small(), "other data")


def test_a_run_that_diverges_fails_with_one_sentence(train, tmp_path: Path):
    done = train("protocol.recipe.lr=1e30", "protocol.recipe.clip=none")
    assert done.returncode == 2
    assert "the run diverged; lower protocol.recipe.lr" in done.stderr
    assert read_json(next(tmp_path.rglob("status.json")))["status"] == "failed"


def test_a_run_that_diverges_between_two_rows_is_no_result(small):
    words = ("protocol.recipe.lr=1e30", "protocol.recipe.clip=none", "trainer.log_every=1000")
    with pytest.raises(UserError, match="the dev loss is nan at step 10: the run diverged"):
        runner.train(small(*words))
    assert not list(Path(small().runs_dir).rglob("result.json"))


def test_a_run_that_learns_nothing_says_so(small, capsys: pytest.CaptureFixture[str]):
    """With all logits equal but for the bias, every answer is the same."""
    runner.train(small("protocol.recipe.lr=1e-12", "protocol.recipe.steps=1", "seed=3"))
    record = read_json(next(Path(small().runs_dir).rglob("result.json")))
    collapsed = max(record["test"]["predicted"]) == record["test"]["examples"]
    assert ("the run has collapsed" in capsys.readouterr().out) == collapsed


@pytest.mark.slow
def test_a_compiled_run_trains_and_its_checkpoint_fits_the_plain_network(small: Callable[..., Run]):
    run = small("trainer.compile=true", "protocol.recipe.steps=2", "protocol.evaluation.every=2")
    runner.train(run)
    stored = torch.load(folder_of(run) / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    runner.build(run).load_state_dict(stored)


def test_the_first_losses_are_the_golden_ones(small: Callable[..., Run]):
    """Nothing of data order, initialisation, network, optimiser or schedule moved. A change that
    may move these numbers says so in CHANGELOG.md and runs this file with GOLDEN=write."""
    golden = Path(__file__).parent / "golden" / "listops-luna.csv"
    run = small("attention=luna", "trainer.log_every=1")
    runner.train(run)
    losses = [
        float(r["train_loss"])
        for r in read_metrics(folder_of(run) / "metrics.csv")
        if r["train_loss"]
    ]
    if os.environ.get("GOLDEN") == "write":
        golden.write_text("".join(f"{loss:.6g}\n" for loss in losses[:20]), encoding="utf-8")
    expected = [float(line) for line in golden.read_text(encoding="utf-8").split()]
    assert losses[:20] == pytest.approx(expected, rel=2e-4)
