"""Loggers besides metrics.csv."""

from __future__ import annotations

import os

import pytest

from lra import loggers
from lra.config import UserError
from lra.runs import RunFolder


def test_wandb_without_a_key_is_one_sentence(small, tmp_path, monkeypatch):
    for variable in [name for name in os.environ if name.startswith("WANDB_API")]:
        monkeypatch.delenv(variable)
    for variable, value in {"HOME": tmp_path, "NETRC": tmp_path / "none"}.items():
        monkeypatch.setenv(variable, str(value))
    run = small("logger=[csv,wandb]", "logger.wandb.mode=online")
    with pytest.raises(UserError, match="wandb has no API key: run `wandb login`"):
        loggers.build(run, RunFolder(run, "data"))


def test_tensorboard_and_wandb_can_be_on_together(small, monkeypatch):
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
