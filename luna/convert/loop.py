"""The loop that both stages of training share: rounds of steps, each followed by a look at the
model. The state after each round is saved, and an interrupted stage goes on from there, exactly."""

from __future__ import annotations

import abc
import io
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from luna.base import LunaError
from luna.convert.running import ModelInputs

STATES = ("stage1.pt", "stage2.pt")  # the files of both stages' states in a run's folder

Batches = Any  # of an epoch: a list or a loader, which has a length and is iterated repeatedly
Log = Callable[[str], None]


class Stage(abc.ABC):
    """A stage of training. Its class says what a round's batches are, what a batch adds to the
    gradients, and what follows a round."""

    name: ClassVar[str]  # in messages

    def __init__(
        self,
        *,
        weights: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: torch.optim.lr_scheduler.LRScheduler,
        settings: dict[str, Any],
        state_file: Path | None,
    ):
        self.weights = weights  # what is trained: its tensors are part of the state
        self.optimizer = optimizer
        self.schedule = schedule
        self.settings = settings  # of the run to which a state belongs
        self.state_file = state_file  # None: nothing is saved
        self.round = 0
        self.done = False

    # ------------------------------------------------------------------ what a stage defines

    @abc.abstractmethod
    def batches(self, number: int) -> Iterable[ModelInputs]:
        """Give the batches of round 1, 2, ..."""

    @abc.abstractmethod
    def backward(self, batch: ModelInputs) -> float:
        """Add the gradients of a batch, and return its loss."""

    @abc.abstractmethod
    def finish(self, losses: list[float]) -> bool:
        """Note what a round with these losses has led to; True ends the stage."""

    @abc.abstractmethod
    def noted(self) -> dict[str, Any]:
        """Return all that was noted, as plain values and tensors: part of the state."""

    @abc.abstractmethod
    def restore(self, noted: dict[str, Any]) -> None:
        """Take over what an earlier process has noted."""

    # ------------------------------------------------------------------ the loop

    def run(self) -> None:
        while not self.done:
            self.round += 1
            losses = [self.step(batch) for batch in self.batches(self.round)]
            self.done = self.finish(losses)
            self.save()

    def step(self, batch: ModelInputs) -> float:
        self.optimizer.zero_grad()
        loss = self.backward(batch)
        if not math.isfinite(loss):
            rate = self.optimizer.param_groups[0]["lr"]
            raise LunaError(f"{self.name} diverged (loss {loss} at lr {rate:.1e}): lower lr")
        self.optimizer.step()
        self.schedule.step()
        return loss

    # ------------------------------------------------------------------ its state

    def save(self) -> None:
        if self.state_file is None:
            return
        state = {
            "settings": self.settings,
            "weights": self.weights.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "results": self.noted(),
            "progress": (self.round, self.done),
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        content = io.BytesIO()  # torch would turn an error of the disk into one of its own
        torch.save(state, content)
        write_whole(self.state_file, content.getbuffer())

    def resume(self) -> bool:
        """Go on from the saved state, if there is one."""
        if self.state_file is None or not self.state_file.is_file():
            return False
        state = _read_state(self.state_file)
        if state["settings"] != self.settings:
            raise LunaError(
                f"{self.state_file} belongs to a run with other settings ({state['settings']}): "
                "use another folder"
            )
        self.weights.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.restore(state["results"])
        self.round, self.done = state["progress"]
        torch.set_rng_state(state["rng"])
        if torch.cuda.is_available() and state["cuda_rng"]:
            torch.cuda.set_rng_state_all(state["cuda_rng"])
        return True


def _read_state(path: Path) -> dict[str, Any]:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # zip, pickle and runtime errors, whatever a damaged file causes
        raise LunaError(f"{path} cannot be read ({error}): delete it to start over") from error


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file beside `path`, then rename it: a crash leaves no half of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".tmp")
    partial.write_bytes(content)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)
