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

from lra.runs.folder import RunFolder

# What the bar leaves out, in this order, until the rest fits the terminal; the lines above it show
# title and dev accuracy.
DISPENSABLE = ("title", "dev", "rate", "accuracy")
SHORTEST_BAR = 6


class ProgressReport(pl.Callback):
    """Shows progress on the screen and writes it to status.json."""

    def __init__(self, folder: RunFolder, *, style: str, every: float):
        self.folder, self.every = folder, every
        self.style = style if style != "auto" else ("bar" if sys.stderr.isatty() else "lines")
        self._start: tuple[int, float] | None = None  # step and time from which the rate counts
        self._shown = 0.0  # when the last line was shown
        self._bar: Progress | None = None
        self._dev = ""

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        if self.style == "bar" and trainer.is_global_zero:
            before, after = (TextColumn(f"{{task.fields[{side}]}}") for side in ("before", "after"))
            columns = (before, BarColumn(bar_width=None), after)
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("", total=trainer.max_steps, before="", after="")
            self._show(trainer, {"title": module.title})
            self._bar.start()

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        if not trainer.is_global_zero:
            return
        self.folder.progress(trainer.global_step, trainer.max_steps)
        now = time.monotonic()
        if self._start is None:  # the first step is not timed: it compiles and warms up
            self._start, self._shown = (trainer.global_step, now), now
        if self.style == "off" or now - self._shown < (0.5 if self._bar else self.every):
            return
        self._shown = now
        parts = self._parts(trainer, module, now)
        if self._bar:
            self._show(trainer, {"title": module.title} | parts)
        else:
            print("  ".join([f"  {_step(trainer)}", *parts.values()]), flush=True)

    def _parts(self, trainer: pl.Trainer, module: Any, now: float) -> dict[str, str]:
        parts = {}
        sums = module.meter.sums  # not .mean(): that would wait for the other processes
        if sums is not None:
            loss, hits, scored, _ = sums.tolist()
            parts["loss"] = f"loss {loss / scored:.3f}"
            parts["accuracy"] = f"acc {hits / scored:.1%}"
        if self._dev:
            parts["dev"] = self._dev
        if self._start and trainer.global_step > self._start[0]:
            # Both numbers come from one rate, evaluations included, so that they agree.
            rate = (trainer.global_step - self._start[0]) / max(now - self._start[1], 1e-9)
            parts["rate"] = f"{rate:.2g} steps/s" if rate < 1 else f"{rate:.1f} steps/s"
            parts["left"] = f"{clock((trainer.max_steps - trainer.global_step) / rate)} left"
        return parts

    def _show(self, trainer: pl.Trainer, parts: dict[str, str]) -> None:
        """Move the bar, with as many of the parts beside it as the terminal has room for."""
        assert self._bar is not None
        width = self._bar.console.width - SHORTEST_BAR - len("  ") - len(_step(trainer))
        for name in DISPENSABLE:
            if sum(len(part) + len("  ") for part in parts.values()) <= width:
                break
            parts.pop(name, None)
        title = parts.pop("title", None)
        self._bar.update(
            self._task,
            completed=trainer.global_step,
            before=f"{title}  {_step(trainer)}" if title else _step(trainer),
            after="  ".join(parts.values()),
        )

    def on_validation_start(self, trainer: pl.Trainer, module: Any) -> None:
        if self._bar:
            self._show(trainer, {"title": module.title, "left": "evaluating"})

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        loss, accuracy = (float(trainer.callback_metrics[f"dev/{m}"]) for m in ("loss", "accuracy"))
        self._dev = f"dev {accuracy:.1%}"
        if self.style == "off" or not trainer.is_global_zero:
            return
        line = f"  {_step(trainer)}  dev loss {loss:.3f}  dev acc {accuracy:.1%}"
        if self._bar:
            self._bar.console.print(line, highlight=False)
        else:
            print(line, flush=True)

    def teardown(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None


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
