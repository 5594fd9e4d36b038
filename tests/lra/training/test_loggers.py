"""Loggers besides metrics.csv."""

from __future__ import annotations

import os

import pytest
import yaml

from lra.base.config import UserError
from lra.runs.folder import RunFolder, find
from lra.settings.compose import compose
from lra.training import loggers
from lra.training.run import train

from ..conftest import REPOSITORY

SHORT = ("protocol.recipe.steps=4", "protocol.evaluation.every=2", "trainer.log_every=2")


def test_tensorboard_and_wandb_can_be_on_together(small, monkeypatch):
    """Two runs of one process are two records of wandb."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("WANDB_SILENT", "true")
    words = ("logger=[wandb,tensorboard]", "logger.wandb.project=mine", *SHORT)
    for seed in (1, 2):
        folder = train(small(*words, f"seed={seed}")).parent
        [record] = folder.glob("wandb/offline-run-*/run-*.wandb")
        assert b"test_accuracy" in record.read_bytes()
        events = EventAccumulator(str(folder / "tensorboard")).Reload()
        assert {"lr", "dev_loss", "test_accuracy"} <= {*events.Tags()["scalars"]}
        assert [event.step for event in events.Scalars("dev_loss")] == [2, 4]


@pytest.mark.parametrize("extra", ["tensorboard", "mlflow"])
def test_a_missing_extra_is_named(small, monkeypatch, extra: str):
    run = small(f"logger={extra}")
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"pip install 'luna-lra\[{extra}\]'"):
        loggers.build_loggers(run, RunFolder(run, "data"))


def test_wandb_without_a_key_is_one_sentence(small, tmp_path, monkeypatch):
    for variable in [name for name in os.environ if name.startswith("WANDB_API")]:
        monkeypatch.delenv(variable)
    for variable, value in {"HOME": tmp_path, "NETRC": tmp_path / "none"}.items():
        monkeypatch.setenv(variable, str(value))
    run = small("logger=[csv,wandb]", "logger.wandb.mode=online")
    with pytest.raises(UserError, match=r"wandb: .*run `wandb login`"):
        loggers.build_loggers(run, RunFolder(run, "data"))


def test_mlflow_keeps_a_run_in_one_record_of_a_local_store(small, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    run = small("logger=mlflow", f"logger.mlflow.store={store}", "logger.mlflow.experiment=mine")
    train(run)
    folder = find(run)
    assert folder is not None
    result = folder.result()
    assert result is not None
    client = mlflow.MlflowClient(tracking_uri=store)
    (experiment,) = (e for e in client.search_experiments() if e.name == "mine")
    (stored,) = client.search_runs([experiment.experiment_id])
    assert stored.info.status == "FINISHED"
    assert stored.data.metrics["test_accuracy"] == pytest.approx(result["test"]["accuracy"])
    assert stored.data.params["attention/name"] == "linear"
    steps = [m.step for m in client.get_metric_history(stored.info.run_id, "dev_loss")]
    assert steps == [10, 20, 30]
    (again,) = loggers.build_loggers(run, folder)  # as for a run that is resumed
    assert again.version == stored.info.run_id
    with pytest.raises(UserError, match="MLflow cannot use"):
        loggers.build_loggers(small("logger=mlflow", "logger.mlflow.store=nonsense://x"), folder)


def test_the_agent_of_wandb_can_run_the_sweep_of_the_docs():
    """The command that wandb makes of the file for its agent; the server that gives values is
    left out."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

    page = (REPOSITORY / "docs" / "clusters.md").read_text(encoding="utf-8")
    sweep = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    values = {
        key: {"value": range["values"][-1] if "values" in range else range["max"]}
        for key, range in sweep["parameters"].items()
    }
    words = create_sweep_command_args({"args": values})["args_no_hyphens"]
    program, command, *fixed, last = create_sweep_command(sweep["command"])
    assert (program, command, last) == ("lra", "train", "${args_no_hyphens}")
    run = compose([*fixed, *words])
    assert (run.protocol.recipe.lr, run.model.dropout) == (0.01, 0.1)
    assert run.logger.wandb is not None
    assert sweep["metric"]["name"] == "dev_accuracy"  # as metrics.csv calls it
