"""Loggers besides metrics.csv, by the classes that configs/logger/ names."""

from __future__ import annotations

import json
import sqlite3
import sys
from types import ModuleType
from typing import Any

import pytest
from pytorch_lightning.loggers.logger import Logger

from lra.base.disk import read_json
from lra.base.errors import UserError
from lra.runs.search import folder_of
from lra.training.run import train
from lra.training.trainer import build_loggers

from ..conftest import SMALL, command, environment
from ..stand_ins import Trackio
from ..synthetic import selected

SHORT = ("protocol.recipe.steps=4", "protocol.evaluation.every=2", "trainer.log_every=2")


MADE: list[Recorder] = []


class Recorder(Logger):
    """A logger of the user's own."""

    name = version = "recorder"

    def __init__(self, **words: Any) -> None:
        super().__init__()
        self.words, self.rows, self.settings = words, [], {}
        MADE.append(self)

    def log_hyperparams(self, params: Any) -> None:
        self.settings = params

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, tuple(metrics)))


def test_any_logger_gets_each_value_once(small, monkeypatch):
    MADE.clear()
    module = ModuleType("own_loggers")
    module.Recorder = Recorder
    monkeypatch.setitem(sys.modules, "own_loggers", module)
    words = "{_target_:own_loggers.Recorder,where:'{folder}',title:'{title}',id:'{id}'}"
    run = small("trainer.log_every=2", f"+logger.one={words}", f"+logger.two={words}")
    result = train(run)
    one, two = MADE
    training = ("train_loss", "train_score", "lr")
    dev = ("dev_loss", "dev_score", "dead_rows")
    assert [step for step, names in one.rows if names == training] == [*range(2, 31, 2)]
    assert [step for step, names in one.rows if names == dev] == [10, 20, 30]
    best = selected(read_json(result))["step"]
    assert one.rows[-1] == (best, ("test_loss", "test_score"))
    assert one.rows == two.rows
    name = f"{result.parents[1].name}-seed-1"
    facts = {"where": str(result.parent), "title": "listops-linear-seed1", "id": name}
    assert one.words == facts
    assert one.settings["attention"]["name"] == "linear"


def test_tensorboard_and_wandb_can_be_on_together(small, monkeypatch):
    """Two runs of one process are two records of wandb."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("WANDB_SILENT", "true")
    words = ("logger=[wandb,tensorboard]", "logger.wandb.project=mine", *SHORT)
    for seed in (1, 2):
        folder = train(small(*words, f"seed={seed}")).parent
        [record] = folder.glob("wandb/offline-run-*/run-*.wandb")
        assert b"test_score" in record.read_bytes()
        events = EventAccumulator(str(folder / "tensorboard")).Reload()
        assert {"lr", "dev_loss", "test_score"} <= {*events.Tags()["scalars"]}
        assert [event.step for event in events.Scalars("dev_loss")] == [2, 4]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("logger=mlflow",), "logger=mlflow cannot start .*mlflow.*docs/install"),
        (("logger=trackio",), "logger=trackio cannot start .*trackio.*docs/install"),
        (("logger=[csv,wandb]", "logger.wandb.mode=online"), "logger=wandb cannot start .*key"),
        (("+logger.own={_target_:nosuch.Logger}",), "logger=own cannot start .*nosuch"),
    ],
)
def test_a_logger_that_cannot_start_is_one_sentence(small, tmp_path, monkeypatch, words, reason):
    for name in ("WANDB_API_KEY", "WANDB_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    for variable, value in {"HOME": tmp_path, "NETRC": tmp_path / "none"}.items():
        monkeypatch.setenv(variable, str(value))
    for name in ("mlflow", "trackio"):
        monkeypatch.setitem(sys.modules, name, None)
    run = small(*words)
    with pytest.raises(UserError, match=reason):
        build_loggers(folder_of(run, "data"))


def test_mlflow_stores_a_run(small, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    run = small("logger=mlflow", f"logger.mlflow.tracking_uri={store}", *SHORT)
    result = read_json(train(run)) or {}
    client = mlflow.MlflowClient(tracking_uri=store)
    (experiment,) = (e for e in client.search_experiments() if e.name == "luna-lra")
    (stored,) = client.search_runs([experiment.experiment_id])
    assert stored.info.status == "FINISHED"
    assert stored.data.metrics["test_score"] == pytest.approx(result["score"])
    assert stored.data.params["attention/name"] == "linear"


def test_trackio_has_a_run_for_each_of_ours(small, monkeypatch):
    """Of settings, and of values until its test; a resumed one goes on under its name."""
    stand_in = Trackio()
    monkeypatch.setitem(sys.modules, "trackio", stand_in)
    for seed in (1, 2):
        folder = train(
            small("logger=trackio", "logger.trackio.project=mine", *SHORT, f"seed={seed}")
        )
        run = stand_in.runs[-1]
        assert run["project"] == "mine"
        assert run["name"].endswith(f"{folder.parents[1].name}-seed-{seed}")
        assert run["resume"] == "allow"
        assert run["config"]["attention"]["name"] == "linear"
        assert run["rows"][-1][1] == ("test_loss", "test_score")
        assert {step for step, names in run["rows"] if "dev_loss" in names} == {2, 4}
        assert not stand_in.open
    assert len(stand_in.runs) == 2


def test_trackio_itself_keeps_a_run(small, tmp_path):
    """In a process of its own, because the package asks where it keeps its files on its import."""
    pytest.importorskip("trackio")
    result = read_json(train(small(*SHORT))) or {}
    words = (*SMALL, *SHORT, "logger=trackio", "logger.trackio.project=mine")
    places = (f"data_dir={small().data_dir}", f"runs_dir={tmp_path / 'others'}")
    done = command("train.py", *words, *places, env=environment() | {"TRACKIO_DIR": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    with sqlite3.connect(tmp_path / "mine.db") as store:
        rows = [json.loads(row) for (row,) in store.execute("SELECT metrics FROM metrics")]
    assert rows[-1]["test_score"] == pytest.approx(result["score"])
