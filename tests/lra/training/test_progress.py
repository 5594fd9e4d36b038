"""What a run shows fits the terminal, and its numbers agree."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from lra.training import progress
from lra.training.module import LossMeter
from lra.training.progress import ProgressReport, clock, say


@pytest.fixture
def shown(monkeypatch):
    """shown(width, steps): the last line of a bar after 300 of the steps, one second each."""

    def show(width: int, steps: int, style: str = "bar") -> str:
        screen = io.StringIO()
        console = Console(file=screen, width=width, force_terminal=True, color_system=None)
        monkeypatch.setattr(progress, "Console", lambda **_: console)
        now = iter(range(10_000))
        monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(now)))
        folder: Any = SimpleNamespace(progress=lambda step, steps: None)
        module = SimpleNamespace(title="pathfinder256/performer_relu", meter=LossMeter())
        choice = torch.arange(16) // 9  # 7 of 16 are 1
        module.meter.update(torch.tensor(1.234), choice, torch.ones(16).long())
        trainer: Any = SimpleNamespace(is_global_zero=True, max_steps=steps, global_step=0)
        trainer.callback_metrics = {"dev/loss": 2.0, "dev/accuracy": 0.345}
        report = ProgressReport(folder, style=style, every=10)
        report.on_train_start(trainer, module)
        for step in range(1, 301):
            trainer.global_step = step
            report.on_train_batch_end(trainer, module)
            if step == 100:
                report.on_validation_start(trainer, module)
                report.on_validation_end(trainer, module)
        if report._bar:
            report._bar.refresh()
        report.teardown(trainer, module, "fit")  # type: ignore[arg-type]
        lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()))
        assert all(len(line) <= width for line in lines)
        return [line for line in lines if "steps/s" in line or "left" in line][-1].rstrip()

    return show


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_bar_has_its_step_count_and_fits_the_terminal(shown, width: int):
    line = shown(width, steps=50_000)
    assert "step   300/50000" in line
    assert "loss 1.234" in line
    assert line.endswith("13:48:20 left")  # 49,700 steps at one per second
    assert "…" not in line
    assert ("1.0 steps/s" in line, "dev 34.5%" in line) == (width >= 80, width >= 120)


def test_a_wide_terminal_shows_everything(shown):
    line = shown(140, steps=400)
    assert line.startswith("pathfinder256/performer_relu  step 300/400 ")
    assert line.endswith("loss 1.234  acc 43.8%  dev 34.5%  1.0 steps/s  1:40 left")


def test_rate_and_time_left_are_of_one_count(tmp_path, capsys, monkeypatch):
    """An evaluation of a minute between two steps slows both down."""
    folder: Any = SimpleNamespace(progress=lambda step, steps: None)
    report = ProgressReport(folder, style="lines", every=1)
    module: Any = SimpleNamespace(title="a/b", meter=LossMeter())
    trainer: Any = SimpleNamespace(is_global_zero=True, max_steps=40, global_step=0)
    times = iter([0.0, 1.0, 2.0, 63.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    for step in range(1, 5):
        trainer.global_step = step
        report.on_train_batch_end(trainer, module)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"  step  4/40  0.048 steps/s  {clock(36 * 63 / 3)} left"


def test_lines_break_between_words_on_a_terminal_only(capsys, monkeypatch):
    text = "task       listops  a re-generated copy of the data, fingerprint 0123456789abcdef"
    say(text, indent=11)
    assert capsys.readouterr().out == text + "\n"
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(progress.sys.stdout, "isatty", lambda: True)
    say(text, indent=11)
    assert capsys.readouterr().out.splitlines() == [
        "task       listops  a re-generated copy",
        "           of the data, fingerprint",
        "           0123456789abcdef",
    ]
