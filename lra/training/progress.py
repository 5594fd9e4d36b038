"""Progress of a training run on the screen: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from datetime import timedelta
from typing import Any

import pytorch_lightning as pl
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from lra.runs.folder import RunFolder

BAR_EVERY = 0.5  # seconds between updates of the bar: reading the loss waits for a GPU


class ProgressReport(pl.Callback):
    """Shows step, loss, dev accuracy, speed and time left, and writes the step to status.json."""

    def __init__(self, folder: RunFolder, *, style: str, every: float):
        self.folder = folder
        self.style = style if style != "auto" else ("bar" if sys.stderr.isatty() else "lines")
        self.every = BAR_EVERY if self.style == "bar" else every
        self._start: tuple[int, float] | None = None  # step and time from which the speed counts
        self._shown = 0.0  # when it was last shown
        self._dev = ""
        self._bar: Progress | None = None

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        if self.style == "bar" and trainer.is_global_zero:
            step = _step(trainer)
            whole = Column(no_wrap=True, min_width=len(step))
            cut = Column(no_wrap=True)  # at its end, where the terminal is narrow
            self._bar = Progress(
                TextColumn("{task.description}", table_column=whole),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[numbers]}", table_column=cut),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.add_task(step, total=trainer.max_steps, numbers="")
            self._bar.start()

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        if not trainer.is_global_zero:
            return
        self.folder.progress(trainer.global_step, trainer.max_steps)
        now = time.monotonic()
        if self._start is None:  # the first step is not timed: it compiles and warms up
            self._start, self._shown = (trainer.global_step, now), now
        if self.style == "off" or now - self._shown < self.every:
            return
        self._shown = now
        numbers = self._numbers(trainer, module, now)
        if self._bar:
            self._move(trainer, numbers)
        else:
            print(f"  {_step(trainer)}  {numbers}", flush=True)

    def on_validation_start(self, trainer: pl.Trainer, module: Any) -> None:
        self._move(trainer, "evaluating")

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        loss, accuracy = (float(trainer.callback_metrics[f"dev/{m}"]) for m in ("loss", "accuracy"))
        self._dev = f"dev {accuracy:.1%}"
        line = f"  {_step(trainer)}  dev loss {loss:.3f}  dev acc {accuracy:.1%}"
        if self._bar:
            self._bar.console.print(line, highlight=False)
        elif self.style != "off" and trainer.is_global_zero:
            print(line, flush=True)

    def teardown(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None

    def _numbers(self, trainer: pl.Trainer, module: Any, now: float) -> str:
        numbers, sums = [], module.meter.sums  # not .mean(), which waits for other processes
        if sums is not None:
            loss, hits, scored, _ = sums.tolist()
            numbers += [f"loss {loss / scored:.3f}", f"acc {hits / scored:.1%}"]
        if self._dev:
            numbers.append(self._dev)
        if self._start and trainer.global_step > self._start[0]:
            # Both numbers come from one speed, evaluations included, so that they agree.
            speed = (trainer.global_step - self._start[0]) / max(now - self._start[1], 1e-9)
            left = clock((trainer.max_steps - trainer.global_step) / speed)
            numbers += [f"{speed:.2g} steps/s" if speed < 1 else f"{speed:.1f} steps/s"]
            numbers += [f"{left} left"]
        return "  ".join(numbers)

    def _move(self, trainer: pl.Trainer, numbers: str) -> None:
        if self._bar:
            [task] = self._bar.task_ids
            step = trainer.global_step
            self._bar.update(task, completed=step, description=_step(trainer), numbers=numbers)


def _step(trainer: pl.Trainer) -> str:
    """`step   100/400`, padded so that its width stays the same."""
    steps = trainer.max_steps
    return f"step {trainer.global_step:>{len(str(steps))}}/{steps}"


def say(text: str, *, indent: int = 0) -> None:
    """Print text; on a terminal, lines break between words and go on `indent` columns in."""
    if sys.stdout.isatty():
        wrapper = textwrap.TextWrapper(
            shutil.get_terminal_size().columns, subsequent_indent=" " * indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        text = "\n".join(map(wrapper.fill, text.splitlines()))
    print(text, flush=True)


def clock(seconds: float) -> str:
    """Return `1:02:03`, and `2:03` below an hour."""
    return str(timedelta(seconds=round(seconds))).removeprefix("0:").removeprefix("0")
