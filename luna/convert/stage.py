"""Both stages of training share a step, and the state from which an interrupted one resumes."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from luna.base import LunaError
from luna.convert.batches import ModelInputs, memory_advice
from luna.convert.states import write_whole


class Stage:
    """An optimizer and its schedule, which take steps, are saved and resumed. A stage of training
    adds its results, by the names of attributes, and a state of its own."""

    name: str
    results: tuple[str, ...]

    def __init__(
        self,
        settings: dict[str, Any],
        optimizer: torch.optim.Optimizer,
        schedule: torch.optim.lr_scheduler.LRScheduler,
    ):
        self.settings, self.optimizer, self.schedule = settings, optimizer, schedule

    def state(self) -> dict[str, Any]:
        raise NotImplementedError

    def load(self, state: dict[str, Any]) -> None:
        raise NotImplementedError

    def take_step(self, batch: ModelInputs, backward: Callable[[], float]) -> float:
        """One step on the gradients that `backward` computes; returns its loss."""
        self.optimizer.zero_grad()
        with memory_advice(batch):
            loss = backward()
            if not math.isfinite(loss):
                rate = self.optimizer.param_groups[0]["lr"]
                raise LunaError(f"{self.name} diverged (loss {loss} at lr {rate:.1e}): lower lr")
            self.optimizer.step()
        self.schedule.step()
        return loss

    def save(self, path: Path) -> None:
        state = {
            "settings": self.settings,
            "optimizer": self.optimizer.state_dict(),
            "plan": self.schedule.state_dict(),
            **{name: getattr(self, name) for name in self.results},
        }
        write_state(path, state | self.state())

    def resume(self, path: Path) -> bool:
        """Load the state in `path`; False if there is none."""
        if not path.is_file():
            return False
        state = read_state(path, self.settings)
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["plan"])
        for name in self.results:
            setattr(self, name, state[name])
        self.load(state)
        return True


def write_state(path: Path, state: dict[str, Any]) -> None:
    content = io.BytesIO()  # torch would turn an error of the disk into one of its own
    torch.save(state, content)
    write_whole(path, lambda partial: partial.write_bytes(content.getbuffer()))


def read_state(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The state in `path`; a LunaError if it belongs to a run with other settings."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # zip, pickle and runtime errors, whatever a damaged file causes
        raise LunaError(f"{path} cannot be read ({error}): delete it to start over") from error
    if state["settings"] != settings:
        raise LunaError(
            f"{path} belongs to a run with other settings ({state['settings']}): use another folder"
        )
    return state
