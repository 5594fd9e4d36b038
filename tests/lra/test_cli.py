"""`lra train` without words, and completion in the shell."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from hydra.core.hydra_config import HydraConfig

from lra.cli import _typed, main, start


@pytest.mark.parametrize(("app", "choice"), [("train", "task: image"), ("convert", "cola")])
def test_without_words_the_choices_are_printed_and_nothing_starts(app: str, choice: str, capsys):
    before = list(sys.argv)
    with pytest.raises(SystemExit, match="0"):
        start(app, [])
    assert sys.argv == before
    out = capsys.readouterr().out
    assert choice in out
    assert out.count(f"  lra {app} ") >= 3


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("lra train task=list", "task=listops"),
        ("lra convert recipe=s", "recipe=small"),
        ("lra comp", "compute"),
    ],
)
def test_the_shell_completes(line: str, answer: str, monkeypatch, capsys):
    monkeypatch.setenv("COMP_LINE", line)
    assert main(["-sc", "query=bash"]) == 0
    assert answer in capsys.readouterr().out.split()


def test_the_recorded_command_holds_no_password(monkeypatch):
    words = ["seed=2", "logger=mlflow", "logger.mlflow.store=http://a:b@host", "+logger.x=1"]
    hydra = SimpleNamespace(overrides=SimpleNamespace(task=words))
    monkeypatch.setattr(HydraConfig, "get", lambda: hydra)
    assert _typed("train") == "lra train seed=2"
