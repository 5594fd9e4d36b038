"""What a person sees of a training run: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytorch_lightning as pl
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from lra.runs import RunFolder


class Report(pl.Callback):
    """Progress on the screen and in status.json."""

    def __init__(self, folder: RunFolder, *, style: str, every: float):
        self.folder, self.every = folder, every
        self.style = style if style != "auto" else ("bar" if sys.stderr.isatty() else "lines")
        self._start: tuple[int, float] | None = None  # step and time that rates count from
        self._shown = (0, 0.0)  # those of the last line
        self._bar: Progress | None = None
        self._dev = ""

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        if self.style == "bar" and trainer.is_global_zero:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[text]}"),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(module.title, total=trainer.max_steps, text="")
            self._bar.start()

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        if not trainer.is_global_zero:
            return
        self.folder.progress(trainer.global_step, trainer.max_steps)
        now = time.monotonic()
        if self._start is None:  # the first step compiles and warms up, and tells nothing
            self._start = self._shown = (trainer.global_step, now)
        if self.style == "off" or now - self._shown[1] < (0.5 if self._bar else self.every):
            return
        text = self._text(trainer, module, now)
        self._shown = (trainer.global_step, now)
        if self._bar:
            self._bar.update(self._task, completed=trainer.global_step, text=text)
        else:
            print(f"  step {trainer.global_step:>6}/{trainer.max_steps}  {text}", flush=True)

    def _text(self, trainer: pl.Trainer, module: Any, now: float) -> str:
        sums = module.meter.sums  # not .mean(): that would wait for the other processes
        parts = []
        if sums is not None:
            loss, hits, examples = sums.tolist()
            parts.append(f"loss {loss / examples:.3f}  acc {hits / examples:.1%}")
        if self._dev:
            parts.append(self._dev)
        if self._start and trainer.global_step > self._start[0]:
            recent, overall = (
                (trainer.global_step - step) / max(now - since, 1e-9)
                for step, since in (self._shown, self._start)
            )
            left = (trainer.max_steps - trainer.global_step) / overall
            parts.append(f"{recent:.1f} steps/s  {clock(left)} left")
        return "  ".join(parts)

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        loss, accuracy = (float(trainer.callback_metrics[f"dev/{m}"]) for m in ("loss", "accuracy"))
        self._dev = f"dev {accuracy:.1%}"
        if self.style == "off" or not trainer.is_global_zero:
            return
        step = f"  step {trainer.global_step:>6}/{trainer.max_steps}"
        line = f"{step}  dev loss {loss:.3f}  dev acc {accuracy:.1%}"
        if self._bar:
            self._bar.console.print(line, highlight=False)
        else:
            print(line, flush=True)

    def teardown(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None


def clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
