"""What a run shows and writes while it trains: what it is, how far it is, and its result."""

from __future__ import annotations

import csv
import math
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytorch_lightning as pl
from rich.console import Console
from rich.progress import BarColumn, Progress

import luna
from lra import data
from lra.base.disk import write_atomically
from lra.base.errors import Diverged
from lra.compute.gate import BudgetCheck
from lra.data.arrays import Prepared
from lra.metrics.metric import get
from lra.metrics.target import Classes
from lra.runs.folder import RunFolder, read_metrics, score_of, writing
from lra.runs.search import other_source
from lra.settings.experiment import plain
from lra.settings.own import spelt
from lra.settings.presets import AROUND
from lra.settings.run import Run

COMPILING = "compiling kernels for this CPU (once, about 15 s of an idle core)"
BAR_EVERY = 0.5  # seconds between updates of the bar: reading the loss waits for a GPU


class Metrics(pl.Callback):
    """Writes a row of metrics.csv every `trainer.log_every` steps, at least twenty, and at each
    evaluation, and sends it to the loggers. A resumed run drops the rows after its checkpoint,
    since it does these steps again. Callbacks with `columns` add numbers (callbacks.py)."""

    COLUMNS = (
        "step",
        "train_loss",
        "train_score",
        "dev_loss",
        "dev_score",
        "dead_rows",
        "lr",
        "seconds",
    )

    def __init__(self, folder: RunFolder):
        twentieth = math.ceil(folder.run.protocol.recipe.steps / 20)
        self.path, self.every = folder.metrics, min(folder.run.trainer.log_every, twentieth)
        self._columns: tuple[str, ...] = self.COLUMNS

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            rows = [r for r in read_metrics(self.path) if int(r["step"]) <= trainer.global_step]
            self._columns = columns_of(trainer, rows)
            values = (",".join(row.get(name, "") for name in self._columns) for row in rows)
            lines = [",".join(self._columns), *values, ""]
            with writing(self.path):
                write_atomically(self.path, "\n".join(lines).encode())

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        if trainer.global_step % self.every == 0:
            measured = module.meter.read(trainer)
            module.meter.sums = None
            lr = trainer.optimizers[0].param_groups[0]["lr"]
            values = {"train_loss": measured.loss}
            if (score := module.score_of(measured)) is not None:
                values["train_score"] = score
            values["lr"] = lr
            for callback in own_columns(trainer):
                values |= callback.row()
            self._write_row(trainer, module, **values)

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        loss, score = float(trainer.callback_metrics["dev/loss"]), module.evaluated["dev"]["score"]
        dead = module.dead_rows()
        more = {} if dead is None else {"dead_rows": dead}
        self._write_row(trainer, module, dev_loss=loss, dev_score=score, **more)

    def _write_row(self, trainer: pl.Trainer, module: Any, **values: float) -> None:
        (name, loss), step = next(iter(values.items())), trainer.global_step
        if not math.isfinite(loss):
            raise Diverged(
                f"the {name.replace('_', ' ')} is {loss} at step {step}: the run diverged; lower "
                "protocol.recipe.lr or clip gradients"
            )
        if trainer.is_global_zero:
            row: dict[str, Any] = {name: f"{value:.6g}" for name, value in values.items()}
            row |= {"step": step, "seconds": f"{sum(module.clock.read().values()):.2f}"}
            with writing(self.path), self.path.open("a", encoding="utf-8", newline="") as f:
                csv.DictWriter(f, self._columns, lineterminator="\n").writerow(row)
            for logger in trainer.loggers:
                logger.log_metrics(values, step=step)


def own_columns(trainer: Any) -> list[Any]:
    """List the callbacks that the run chose and that add numbers to metrics.csv."""
    return [c for c in trainer.callbacks if hasattr(c, "columns")]


def columns_of(trainer: Any, rows: list[dict[str, str]]) -> tuple[str, ...]:
    """Give the columns of metrics.csv: those of every run, those that callbacks add, and those that
    rows from before an interruption have."""
    added = [name for callback in own_columns(trainer) for name in callback.columns]
    earlier = [name for row in rows[:1] for name in row]
    return tuple(dict.fromkeys([*Metrics.COLUMNS, *added, *earlier]))


class ProgressReport(pl.Callback):
    """Shows step, loss, the score on dev, speed and time left, as a bar on a terminal and in lines
    elsewhere, and writes the step to status.json."""

    def __init__(self, folder: RunFolder):
        self.folder, self.style = folder, folder.run.trainer.progress
        if self.style == "auto":
            terminal = sys.stderr is not None and sys.stderr.isatty()  # None where it is closed
            self.style = "bar" if terminal else "lines"
        self.every = BAR_EVERY if self.style == "bar" else folder.run.trainer.print_every
        self._shown, self._dev = time.monotonic(), ""
        columns = ("{task.description}", BarColumn(None), "{task.fields[text]}")
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._stop_listening: Callable[[], None] = lambda: None

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        if not trainer.is_global_zero:
            self.style = "off"
        if self.style == "bar":
            self._bar.add_task(_step(trainer), total=trainer.max_steps, text="")
            self._bar.start()
        if self.style != "off" and module.device.type == "cpu":
            self._stop_listening = before_compiling(lambda: self._say(f"  {COMPILING}"))

    def _say(self, line: str) -> None:
        if self.style == "bar":
            self._bar.console.print(line, highlight=False)
        elif self.style == "lines":
            print(line, flush=True)

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        if trainer.is_global_zero:
            self.folder.progress(trainer.global_step, trainer.max_steps)
        if self.style == "off" or time.monotonic() - self._shown < self.every:
            return
        self._shown, step, numbers = time.monotonic(), trainer.global_step, [self._dev]
        if module.meter.sums is not None:  # its mean would wait for other processes
            measured = module.meter.read()
            numbers = [f"loss {measured.loss:.3f}"]
            if (score := module.score_of(measured)) is not None:
                numbers += [f"train {module.metric.short(score)}"]
            numbers += [self._dev]
        # Evaluations included, as `lra status` has it, but not the first step after a start: it
        # compiles, and takes a hundred times as long as the others.
        if steps := module.clock.steps["training"]:
            seconds = module.clock.read()
            speed = steps / max(seconds["training"] + seconds["evaluation"], 1e-9)
            numbers += [
                f"{speed:.2g} steps/s" if speed < 1 else f"{speed:.1f} steps/s",
                f"{clock((trainer.max_steps - step) / speed)} left",
            ]
        text = "  ".join(filter(None, numbers))
        for task in self._bar.task_ids:
            self._bar.update(task, completed=step, description=_step(trainer), text=text)
        if self.style == "lines":
            print(f"  {_step(trainer)}  {text}".rstrip(), flush=True)

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        loss = float(trainer.callback_metrics["dev/loss"])
        score = module.metric.short(module.evaluated["dev"]["score"])
        self._dev = f"dev {score}"
        self._say(f"  {_step(trainer)}  dev loss {loss:.3f}  dev {module.metric.title} {score}")

    def teardown(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        self._stop_listening()
        self._stop_listening = lambda: None  # a test is torn down too
        if self._bar.live.is_started:
            self._bar.stop()


def before_compiling(say: Callable[[], None]) -> Callable[[], None]:
    """Call `say` before numba compiles for the first time, which it does not where it finds machine
    code on disk. Returns a function that ends this."""
    kernels = sys.modules.get("luna.kernels.cpu")  # imported by the methods that have kernels
    if kernels is None or not kernels.AVAILABLE:
        return lambda: None
    from numba.core import event

    class FirstCompilation(event.Listener):
        said = False

        def on_start(self, _: Any) -> None:
            if not self.said:
                self.said = True
                say()

        def on_end(self, _: Any) -> None:
            """numba asks for both."""

    kind, listener = "numba:compile", FirstCompilation()
    event.register(kind, listener)
    return lambda: event.unregister(kind, listener)


def introduce(check: BudgetCheck, prepared: Prepared, folder: RunFolder) -> None:
    """Show what is trained, on which data, at what cost, and where."""
    run, recipe, name = check.run, check.run.protocol.recipe, check.run.attention["name"]
    usual = {key: plain(p.default) for key, p in luna.options(name).items()}
    usual |= {"name": name} | AROUND
    options = [f"{key}={v}" for key, v in run.attention.items() if v != usual.get(key)]
    preset = "" if run.compute.preset == "matched" else f"  (preset {run.compute.preset})"
    together = f", {count} processes" if (count := run.processes) > 1 else ""
    print(f"task       {run.task.name}  {prepared.describe()}")
    print(f"attention  {name}  {' '.join(options) or 'defaults'}{preset}")
    print("compute    " + check.describe().replace("\n", "\n" + " " * 11))
    print(
        f"training   {recipe.steps} steps of {recipe.batch}, protocol {run.protocol.name} "
        f"v{run.protocol.version}, steps share {run.steps_share:g}, seed {run.seed}{together}"
    )
    for group in ("optimizer", "schedule", "callbacks"):
        if (chosen := spelt(run.chosen.get(group))) != "none":
            print(f"{group:<11}{chosen}")
    for note in notes_on(run, prepared):
        print(f"note: {note}")
    print(f"run        {folder.path}", flush=True)


def notes_on(run: Run, prepared: Prepared) -> Iterator[str]:
    """Say what is allowed but seldom meant."""
    recipe, test = run.protocol.recipe, prepared.split("test").scored_labels()
    if recipe.warmup > recipe.steps:
        yield f"the warm-up of {recipe.warmup} steps is longer than the training"
    if cut := prepared.facts["splits"]["train"]["truncated"]:
        yield (
            f"{cut:,} training examples are longer than {prepared.facts['width']:,} tokens "
            "and are cut there"
        )
    if recipe.batch > (n := len(prepared.split("train"))):
        yield f"a batch of {recipe.batch:,} repeats the {n:,} training examples"
    if run.task.source == "memory" and isinstance(data.of(run.task).target, Classes):
        yield from notes_on_classes(prepared.split("train").scored_labels(), test)
    if len(test) > 1 and np.all(test == test[0]):
        yield "all labels of the test examples are the same, so the score tells nothing"


def notes_on_classes(train: np.ndarray, test: np.ndarray) -> Iterator[str]:
    """Classes that were numbered with gaps, and those that training never sees."""
    seen, tested = {*train.tolist()}, {*test.tolist()}
    if unseen := sorted(tested - seen):
        yield f"class {unseen[0]} is in the test examples and in no training example"
    if missing := sorted({*range(max(seen | tested))} - seen - tested):
        yield f"class {missing[0]} never occurs: number the classes from 0 on, without gaps"


def introduce_phase_one(folder: RunFolder) -> None:
    recipe, rate = folder.run.protocol.recipe, folder.run.pretrain.rate
    target = "next tokens" if rate is None else f"masked tokens ({rate:.0%})"
    print(
        f"phase one  {target} of the training inputs, {recipe.steps} steps of {recipe.batch}, "
        f"seed {folder.run.seed}; dev here: held-out training inputs"
    )
    print(f"run        {folder.path}", flush=True)


def show_result(folder: RunFolder, before: dict[str, Any] | None) -> None:
    """Show the result of a run, or, from before this command, that it had one."""
    if before:
        print(f"already finished: {score_of(before)}")
        if differs := other_source(folder):
            print(f"note: other code made this result ({differs}); rerun=true makes it anew")
    elif result := folder.result():
        test, took = result["stages"][result["select"]], clock(sum(result["seconds"].values()))
        tokens = f"{n} tokens of " if (n := test["scored"]) != test["examples"] else ""
        print(
            f"done: {score_of(result)} on {tokens}{test['examples']} examples "
            f"({result['select']} checkpoint, step {test['step']}) in {took}"
        )
        for name, score in test["metrics"].items():
            print(f"      {get(name).title} {get(name).text(score)}")
        if folder.run.debug:
            print(f"note: debug={folder.run.debug.name}: no table takes this for a result")
        if (answered := test.get("predicted")) and max(answered) == sum(answered):
            print("note: every answer is the same class; the run has collapsed")
    print(f"record: {folder.result_file}")


def clock(seconds: float) -> str:
    """Return `1:02:03`, and `2:03` below an hour."""
    return str(timedelta(seconds=round(seconds))).removeprefix("0:").removeprefix("0")


def _step(trainer: pl.Trainer) -> str:
    """`step   100/400`, padded so that its width stays the same."""
    return f"step {trainer.global_step:>{len(str(trainer.max_steps))}}/{trainer.max_steps}"
