"""What a run shows fits the terminal, and its numbers agree."""

from __future__ import annotations

import io
import re
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from lra.metrics.metric import get
from lra.training import progress
from lra.training.meter import Meter
from lra.training.module import LRAModule
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
        trainer.callback_metrics = {"dev/loss": 2.0}
        clock = SimpleNamespace(steps={"starting": 1, "training": 0})
        seconds = {"starting": 100.0}  # of the first step, which does not count
        others = ("training", "evaluation")
        clock.read = lambda: seconds | dict.fromkeys(others, clock.steps["training"] / 2)
        module: Any = SimpleNamespace(
            meter=Meter(),
            clock=clock,
            device=torch.device("cpu"),
            metric=get("accuracy"),
            evaluated={"dev": {"score": 34.5}},
        )
        module.score_of = partial(LRAModule.score_of, module)
        module.meter.update(torch.tensor(1.234), torch.tensor(7), torch.tensor(16), 16)
        report = ProgressReport(folder)
        report.on_train_start(trainer, module)
        for step in range(1, 301):
            trainer.global_step, clock.steps["training"] = step, step - 1
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


NUMBERS = "loss 1.234  train 43.8 %  dev 34.5 %  1.0 steps/s  13:48:20 left"


def test_a_bar_has_step_numbers_and_time_left(shown):
    lines = shown("bar", 90)
    assert "  step   100/50000  dev loss 2.000  dev accuracy 34.5 %" in lines
    assert re.fullmatch(rf"step   300/50000 [━╸╺ ]+ {NUMBERS}", lines[-1])


def test_without_a_terminal_there_are_plain_lines(shown):
    lines = shown("lines")
    assert (
        lines[0] == "  step     1/50000  loss 1.234  train 43.8 %"
    )  # nothing is known of the rest
    assert lines[-1] == f"  step   300/50000  {NUMBERS}"
    assert shown("off") == []


def test_compiling_is_said_once_and_only_where_it_happens(tmp_path, monkeypatch):
    numba = pytest.importorskip("numba")
    # Where other tests have changed the environment, numba reads its settings from there anew.
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(numba.core.config, "CACHE_DIR", str(tmp_path))
    source = "def double(x):\n    return 2 * x\n"
    (tmp_path / "own_kernel.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import own_kernel

    from luna.kernels import cpu

    said: list[str] = []
    monkeypatch.setitem(sys.modules, "luna.kernels.cpu", cpu)
    stop = progress.before_compiling(lambda: said.append("compiling"))
    kernel = numba.njit(own_kernel.double, cache=True)
    assert (kernel(1), kernel(1.5), said) == (2, 3.0, ["compiling"])  # two types
    stop()
    stop = progress.before_compiling(lambda: said.append("compiling again"))
    assert numba.njit(own_kernel.double, cache=True)(1) == 2  # from the disk
    assert said == ["compiling"]
    assert numba.njit(own_kernel.double)(1) == 2
    assert said == ["compiling", "compiling again"]
    stop()
