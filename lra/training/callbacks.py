"""Lightning callbacks: checkpoints and signals, compilation, and the metrics file."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import multiprocessing
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.io import TorchCheckpointIO

from lra.base.config import Compile, UserError
from lra.base.disk import write_atomically
from lra.runs.folder import RunFolder, read_metrics, writing
from lra.training.checkpoints import load_checkpoint

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LIMIT = signal.SIGALRM  # stands for `limit_minutes`; it is never sent
MODES = {Compile.default: None, Compile.graphs: "reduce-overhead"}  # of torch.compile


class Interrupted(BaseException):
    """Says that a signal, or the time limit, asked the run to stop. Like KeyboardInterrupt it is no
    Exception, because library code may catch those."""

    def __init__(self, signum: int):
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


@contextlib.contextmanager
def stop_at_once() -> Iterator[None]:
    """End the block with Interrupted at SIGTERM and Ctrl-C. During training Checkpoints replaces
    this: it waits for the end of the step and saves."""
    before = {signum: signal.signal(signum, _interrupt) for signum in SIGNALS}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise Interrupted(signum)


def sweep_has_died() -> bool:
    """Tell whether the process of a sweep that forked this run is gone. Nobody else would stop the
    run then, while its GPU may be given to another job."""
    parent = multiprocessing.parent_process()  # None in a run started by hand
    return parent is not None and not parent.is_alive()


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint completely or not at all. Lightning itself writes to TMPDIR and moves the
    file: across file systems a move is a copy, and kill -9 can leave half of it."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        path = Path(path)
        content = io.BytesIO()
        torch.save(checkpoint, content)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content.getbuffer())

    def load_checkpoint(
        self, path: Any, map_location: Any = "cpu", weights_only: bool | None = True
    ) -> dict[str, Any]:
        return load_checkpoint(Path(path))


class Checkpoints(pl.Callback):
    """Saves `last.ckpt` to resume from and `best.ckpt` (weights only) by dev accuracy; stops
    cleanly on SIGTERM, on Ctrl-C and at the deadline, a time of `time.monotonic()`.

    `last.ckpt` is never written between the last training step before an evaluation and that
    evaluation: resuming there, Lightning would skip it.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        every: int,
        evaluate_every: int,
        select_after: int,
        deadline: float = math.inf,
    ):
        self.folder, self.every, self.evaluate_every = folder, every, evaluate_every
        self.select_after, self.deadline = select_after, deadline
        self.best_accuracy, self.best_step = -1.0, 0
        self._signum = 0

    def state_dict(self) -> dict[str, Any]:
        return {"best_accuracy": self.best_accuracy, "best_step": self.best_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best_accuracy, self.best_step = state["best_accuracy"], state["best_step"]

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        for signum in SIGNALS:  # replaces Lightning's handlers, which it removes itself
            signal.signal(signum, self._on_signal)

    def on_test_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.on_train_start(trainer, module)

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        step = trainer.global_step
        if step % self.evaluate_every == 0:
            return  # on_validation_end follows
        self._stop_if_asked(trainer)
        if step % self.every == 0:
            trainer.save_checkpoint(self.folder.last, weights_only=False)

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        accuracy, step = float(trainer.callback_metrics["dev/accuracy"]), trainer.global_step
        if accuracy > self.best_accuracy:
            self.best_accuracy = accuracy
            if step > self.select_after:
                self.best_step = step
                trainer.save_checkpoint(self.folder.best, weights_only=True)
        self._stop_if_asked(trainer)
        trainer.save_checkpoint(self.folder.last, weights_only=False)

    def on_test_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        if signum := self._signal_to_stop_for(trainer):
            raise Interrupted(signum)  # the checkpoint of the last step exists already

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if self._signum:  # the second signal: stop at once and keep the last checkpoint
            raise KeyboardInterrupt
        self._signum = signum

    def _signal_to_stop_for(self, trainer: pl.Trainer) -> int:
        """Return a signal, or 0. All processes stop after the same step, whichever of them received
        it; the death of the parent sweep counts as SIGTERM."""
        signum = self._signum
        if trainer.is_global_zero and not signum:
            late = time.monotonic() > self.deadline
            signum = signal.SIGTERM if sweep_has_died() else LIMIT if late else 0
        if trainer.world_size == 1:
            return signum
        flag = torch.tensor(signum, device=trainer.strategy.root_device)
        torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
        return int(flag)

    def _stop_if_asked(self, trainer: pl.Trainer) -> None:
        if signum := self._signal_to_stop_for(trainer):
            trainer.save_checkpoint(self.folder.last, weights_only=False)
            raise Interrupted(signum)


class Compiled(pl.Callback):
    """Compiles the network at the first batch. On a GPU an ordinary forward pass comes first: there
    alone kernels are compared with their references (luna/kernels/checked.py)."""

    def __init__(self, how: Compile):
        self.how, self.done = how, how is Compile.off

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, _: int) -> None:
        if not self.done:
            self.done = True
            if module.device.type == "cuda":
                module.network.eval()  # where nothing is drawn, and no statistic moves
                with trainer.precision_plugin.forward_context():
                    module.network(batch.ids, batch.mask)
                module.network.train()
            module.network.compile(mode=MODES[self.how])
        if self.how is Compile.graphs:
            torch.compiler.cudagraph_mark_step_begin()  # the last step's outputs are not needed


class Metrics(pl.Callback):
    """Writes a row of metrics.csv every `every` steps and at each evaluation, and sends it to the
    loggers. A resumed run drops the rows after its checkpoint, since it does these steps again."""

    COLUMNS = (
        "step", "train_loss", "train_accuracy", "dev_loss", "dev_accuracy", "dead_rows", "lr",
        "seconds",
    )  # fmt: skip

    def __init__(self, path: Path, *, every: int):
        self.path, self.every = path, every

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        rows = [r for r in read_metrics(self.path) if int(r["step"]) <= trainer.global_step]
        text = io.StringIO()
        writer = csv.DictWriter(text, self.COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        with writing(self.path):
            write_atomically(self.path, text.getvalue().encode())

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        if trainer.global_step % self.every == 0:
            loss, accuracy, *_ = module.meter.mean(trainer)
            module.meter.reset()
            _check_finite("training", loss, trainer.global_step)
            lr = trainer.optimizers[0].param_groups[0]["lr"]
            self._write_row(trainer, module, train_loss=loss, train_accuracy=accuracy, lr=lr)

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        loss, accuracy = (float(trainer.callback_metrics[f"dev/{m}"]) for m in ("loss", "accuracy"))
        _check_finite("dev", loss, trainer.global_step)
        dead = module.dead_rows()
        more = {} if dead is None else {"dead_rows": dead}
        self._write_row(trainer, module, dev_loss=loss, dev_accuracy=accuracy, **more)

    def _write_row(self, trainer: pl.Trainer, module: Any, **values: float) -> None:
        if not trainer.is_global_zero:
            return
        seconds = sum(module.clock.read().values())
        row = {"step": trainer.global_step, "seconds": f"{seconds:.2f}"}
        row |= {name: f"{value:.6g}" for name, value in values.items()}
        with writing(self.path), self.path.open("a", encoding="utf-8", newline="") as f:
            csv.DictWriter(f, self.COLUMNS, lineterminator="\n").writerow(row)
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.global_step)


def _check_finite(split: str, loss: float, step: int) -> None:
    if not math.isfinite(loss):
        raise UserError(
            f"the {split} loss is {loss} at step {step}: the run diverged; "
            "lower protocol.recipe.lr or clip gradients"
        )
