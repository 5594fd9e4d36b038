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
from lra.training.progress import ProgressReport


@pytest.fixture
def shown(monkeypatch, capsys):
    """shown(style, width): all lines of 300 steps of 50,000, one second each, after 2 a second."""

    def show(style: str, width: int = 80) -> list[str]:
        screen = io.StringIO()
        console = Console(file=screen, width=width, force_terminal=True, color_system=None)
        monkeypatch.setattr(progress, "Console", lambda **_: console)
        now = iter(range(10_000))
        monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(now)))
        settings = SimpleNamespace(progress=style, print_every=1)
        run = SimpleNamespace(trainer=settings)
        folder: Any = SimpleNamespace(run=run, progress=lambda step, steps: None)
        trainer: Any = SimpleNamespace(is_global_zero=True, max_steps=50_000, global_step=0)
        trainer.callback_metrics = {"dev/loss": 2.0, "dev/accuracy": 0.345}
        clock = SimpleNamespace(read=lambda: dict.fromkeys("ab", trainer.global_step / 2))
        module: Any = SimpleNamespace(meter=LossMeter(), clock=clock)
        choice = torch.arange(16) // 9  # 7 of 16 are 1
        module.meter.update(torch.tensor(1.234), choice, torch.ones(16).long())
        report = ProgressReport(folder)
        report.on_train_start(trainer, module)
        for step in range(1, 301):
            trainer.global_step = step
            report.on_train_batch_end(trainer, module)
            if step == 100:
                report.on_validation_end(trainer, module)
        report._bar.refresh()
        report.teardown(trainer, module, "fit")
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()) + capsys.readouterr().out
        lines = [line.rstrip() for line in re.split(r"[\r\n]+", text) if line.strip()]
        assert all(len(line) <= width or style == "lines" for line in lines)
        return lines

    return show


NUMBERS = "loss 1.234  acc 43.8%  dev 34.5%  1.0 steps/s  13:48:20 left"


def test_a_bar_has_step_numbers_and_time_left(shown):
    lines = shown("bar", 90)
    assert "  step   100/50000  dev loss 2.000  dev acc 34.5%" in lines
    assert re.fullmatch(rf"step   300/50000 [━╸╺ ]+ {NUMBERS}", lines[-1])


def test_without_a_terminal_there_are_plain_lines(shown):
    assert shown("lines")[-1] == f"  step   300/50000  {NUMBERS}"
    assert shown("off") == []
