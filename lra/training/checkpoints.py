"""How a run stops and resumes: signals, and checkpoints that are written whole and checked."""

from __future__ import annotations

import contextlib
import io
import math
import multiprocessing
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.io import TorchCheckpointIO

from lra.base.disk import write_atomically
from lra.base.errors import UserError, first_line
from lra.base.packed import refuse_packed
from lra.base.parent import is_first
from lra.runs.folder import RunFolder, writing
from lra.runs.search import note_other_code

# SIGHUP of a terminal that is closed; SIGALRM of the kernel at `limit_minutes`.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM)


class Interrupted(BaseException):
    """Says that a signal asked the run to stop. No Exception: library code may catch those."""

    def __init__(self, signum: int):
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


def caught() -> list[signal.Signals]:
    """What stops a run: not what the process ignores, as under nohup; and nothing in a thread,
    since signals are the main thread's."""
    if threading.current_thread() is not threading.main_thread():
        return []
    return [signum for signum in SIGNALS if signal.getsignal(signum) is not signal.SIG_IGN]


@contextlib.contextmanager
def stop_at_once(seconds: float = math.inf) -> Iterator[None]:
    """End the block with Interrupted at SIGTERM, at Ctrl-C and after these seconds. During training
    Checkpoints replaces this: it waits for the end of the step and saves."""

    def interrupt(signum: int, frame: Any) -> None:
        raise Interrupted(signum)

    before = {signum: signal.signal(signum, interrupt) for signum in caught()}
    try:
        if seconds < math.inf:
            if not before:
                raise UserError(
                    "limit_minutes ends a run by a signal, and only the main thread of a process "
                    "gets one: train there, or without limit_minutes"
                )
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
        yield
    finally:
        if seconds < math.inf:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextlib.contextmanager
def ending(what: str, seconds: float = math.inf) -> Iterator[None]:
    """End the process at a signal and after these seconds, during what leaves nothing behind."""
    try:
        with stop_at_once(seconds):
            yield
    except Interrupted as interrupted:
        at_limit = interrupted.signum == signal.SIGALRM
        how = "at limit_minutes" if at_limit else f"by {interrupted}"
        print(f"interrupted {how} while {what}; run the same command again", file=sys.stderr)
        raise SystemExit(128 + interrupted.signum) from None


@contextlib.contextmanager
def noting_the_end(folder: RunFolder) -> Iterator[None]:
    """Write into the folder why the block did not come to its end."""
    try:
        yield
    except Interrupted as interrupted:
        how = f"by {interrupted}"
        if interrupted.signum == signal.SIGALRM:
            how = f"at its limit of {folder.run.limit_minutes:g} minutes"
        folder.set_status("interrupted", how=how)
        print(f"interrupted {how}; run the same command again to resume", file=sys.stderr)
        raise SystemExit(128 + interrupted.signum) from None
    except (KeyboardInterrupt, BrokenPipeError) as error:  # the second Ctrl-C; nobody reads
        stopped = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGPIPE
        folder.set_status("interrupted", how=f"by {stopped.name}")
        raise
    except SystemExit:
        folder.set_status("interrupted", how="in phase one")
        raise
    except BaseException as error:
        with contextlib.suppress(UserError, OSError):  # the disk fails too: show the first error
            folder.set_status("failed", error=f"{type(error).__name__}: {first_line(error)}")
        raise


@dataclass
class Running:
    """A run while it is held: whether it is still to be done, whether this process speaks for it,
    and the facts that its work finds out, which become its result."""

    wanted: bool = True
    speaks: bool = True
    facts: dict[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def running(
    folder: RunFolder, *, seconds: float = math.inf, wait: bool = False
) -> Iterator[Running]:
    """Hold a run while the block works on it, stop it cleanly, and write its result. Of several
    processes the first holds lock and status."""
    if folder.result() is not None:  # perhaps on a disk that can only be read
        yield Running(wanted=False, speaks=False)
        return
    if not is_first():
        try:
            with stop_at_once():
                yield Running(speaks=False)
        except Interrupted:  # the first process reports it
            raise SystemExit from None
        return
    note_other_code(folder)
    with folder.lock(wait=wait):
        if folder.result() is not None:
            yield Running(wanted=False, speaks=False)
            return
        folder.begin()
        with noting_the_end(folder), stop_at_once(seconds):
            run = Running()
            yield run
        folder.finish(run.facts)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint of a run completely or not at all. Lightning itself writes to TMPDIR and
    moves the file: across file systems a move is a copy, and kill -9 can leave half of it."""

    def __init__(self, run: str):
        self.run = run

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, *_: Any, **__: Any) -> None:
        content = io.BytesIO()
        torch.save(checkpoint | {"identity": self.run}, content)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content.getbuffer())

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        return load_checkpoint(path, self.run)


def load_checkpoint(path: Path, run: str | None = None) -> dict[str, Any]:
    """Load a checkpoint; UserError for a damaged file and for one of another run."""
    try:
        refuse_packed(path)
        checkpoint = dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # without torch's text, which advises to trust such a file
        raise UserError(
            f"{path} is damaged, or holds more than tensors and plain values, which is not loaded; "
            "remove it to start from the beginning"
        ) from error
    weights = checkpoint.get("state_dict")
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
        raise UserError(f"{path} holds no weights: remove it to start from the beginning")
    if run is not None and checkpoint.get("identity") != run:
        raise UserError(
            f"{path} belongs to run {checkpoint.get('identity')}, not to {run}; remove it"
        )
    return checkpoint


class Checkpoints(pl.Callback):
    """Saves `last.ckpt` to resume from and `best.ckpt` (weights only) by the score on dev; stops
    cleanly on SIGTERM, on Ctrl-C and at the run's time limit.

    `last.ckpt` is never written between the last training step before an evaluation and that
    evaluation: resuming there, Lightning would skip it.
    """

    def __init__(self, folder: RunFolder):
        self.folder, self.every = folder, folder.run.trainer.checkpoint_every
        evaluation, steps = folder.run.protocol.evaluation, folder.run.protocol.recipe.steps
        self.evaluate_every = evaluation.every
        self.select_after = int(evaluation.select_after * steps)
        self.best: dict[str, Any] | None = None  # the best evaluation so far, as records have it
        self.best_step = 0  # of best.ckpt
        self._signum = 0

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_step": self.best_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.best_step = state["best"], state["best_step"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        if trainer.global_step and not trainer.testing and trainer.is_global_zero:
            print(f"resuming at step {trainer.global_step}/{trainer.max_steps}")
        for signum in caught():  # replaces Lightning's handlers, which it removes itself
            signal.signal(signum, self._on_signal)

    on_test_start = on_train_start

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        if trainer.global_step and trainer.global_step % self.evaluate_every == 0:
            self._stop_if_asked(trainer, saved=True)  # behind the line that shows the evaluation

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        if trainer.global_step % self.evaluate_every:  # else on_validation_end follows
            self._stop_if_asked(trainer)
            if trainer.global_step % self.every == 0:
                trainer.save_checkpoint(self.folder.last)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: Any) -> None:
        """The batches of a run are exactly its steps. If a callback has taken several for a step,
        Lightning would now begin empty epochs and never end."""
        if trainer.global_step < trainer.max_steps and not trainer.should_stop:
            raise UserError(
                f"the batches of this run ended at step {trainer.global_step} of "
                f"{trainer.max_steps}: does a callback take several batches for a step?"
            )

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        evaluated, step = module.evaluated["dev"], trainer.global_step
        if self.best is None or module.metric.better(evaluated["score"], self.best["score"]):
            self.best = evaluated | {"step": step}
            if step > self.select_after:
                self.best_step = step
                trainer.save_checkpoint(self.folder.best, weights_only=True)
        trainer.save_checkpoint(self.folder.last)

    def on_test_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self._stop_if_asked(trainer, saved=True)

    def on_fit_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._stop_if_asked(trainer, saved=True)

    def load_best(self, module: pl.LightningModule) -> None:
        """Give a module the weights of the best checkpoint."""
        best = load_checkpoint(self.folder.best, self.folder.id)
        if best["global_step"] != self.best_step:
            raise UserError(
                f"{self.folder.best} is of step {best['global_step']}, but the best one before "
                f"{self.folder.last} was of step {self.best_step}: remove both to train again"
            )
        module.load_state_dict(best["state_dict"])

    def _on_signal(self, signum: int, frame: Any) -> None:
        if self._signum:  # the second signal: stop at once and keep the last checkpoint
            raise KeyboardInterrupt
        self._signum = signum

    def _stop_if_asked(self, trainer: pl.Trainer, *, saved: bool = False) -> None:
        """Save and stop, in all processes after the same step, whichever received the signal. The
        death of the sweep that forked this run counts as SIGTERM: nobody else would stop it then,
        while its GPU may be given to another job."""
        signum, sweep = self._signum, multiprocessing.parent_process()
        if trainer.is_global_zero and not signum and sweep is not None and not sweep.is_alive():
            signum = signal.SIGTERM
        if trainer.world_size > 1:
            flag = torch.tensor(signum, device=trainer.strategy.root_device)
            torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
            signum = int(flag)
        if signum:
            if not saved:
                trainer.save_checkpoint(self.folder.last)
            raise Interrupted(signum)
