"""Stage 1: the feature maps are fitted to the teacher's attention maps; everything else is frozen.

layerwise.py has the losses and where they are computed, fit.py what is measured.
"""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from luna.base import LunaError
from luna.convert.batches import ModelInputs, memory_advice
from luna.convert.fit import DEAD_HEAD, Distilled, Fit, measure
from luna.convert.layerwise import Layerwise
from luna.convert.recipe import LOSSES, check_choice
from luna.convert.redraw import redraw_dead
from luna.convert.states import read_state, write_state
from luna.convert.swap import described, feature_maps, feature_parameters

STATE = "stage1.pt"
INPUTS = ("teacher", "student")


def distill(
    student: nn.Module,
    batches: Iterable[ModelInputs],
    *,
    steps: int | None = None,
    lr: float = 3e-2,
    loss: str = "ce",
    inputs: str = "teacher",
    held_out: Iterable[ModelInputs] | None = None,
    evaluate_every: int = 50,
    redraw: bool = True,
    chunk: int | None = None,
    recompute: bool = False,
    folder: str | Path | None = None,
    log: Callable[[str], None] | None = None,
) -> Distilled:
    """Fit the feature maps of a converted model, in place; the best ones seen are kept.

    batches    mappings of the model's keywords (labels are ignored) or tensors
    steps      number of batches, repeated where they end; None: each batch once
    lr         rate of AdamW without weight decay, on a cosine to 0
    loss       ce: rows of the maps; mse: 1000 x squared error of the outputs; both: their sum
    inputs     what each layer sees: the teacher's hidden states, or the student's own (the graphs
               of all layers are then alive at once)
    held_out   batches on which the KL is measured; None: the first two of `batches`
    redraw     draw the feature map of a dead head again, once
    chunk      examples per backward pass: bounds memory, changes no result
    recompute  compute the student's matrices again in the backward pass instead of keeping them
    folder     keeps the state at every evaluation; the same call on the same batches resumes there
    """
    steps = _length(batches) if steps is None else steps
    _check(student, loss, inputs, steps, evaluate_every, 1 if chunk is None else chunk)
    started = time.monotonic()
    stream = _endless(batches)
    held = list(itertools.islice(stream, 2)) if held_out is None else list(held_out)
    if held_out is None:  # they are trained on as well
        stream = itertools.chain(held, stream)
    settings = {"steps": steps, "lr": lr, "loss": loss, "inputs": inputs, "redraw": redraw}
    work = Layerwise(student, loss, inputs, chunk, recompute)
    run = _Distillation(student, settings)
    state = None if folder is None else Path(folder) / STATE
    if state is None or not run.resume(state):
        run.start(measure(student, held, inputs=inputs))

    for batch in itertools.islice(stream, run.step, steps):
        run.optimizer.zero_grad()
        with memory_advice(batch):
            run.losses.append(work.backward(batch))
            step, last = run.step, run.losses[-1]
            if not math.isfinite(last):
                raise LunaError(f"stage 1 diverged at step {step} (loss {last}): lower lr={lr:g}")
            run.optimizer.step()
        run.schedule.step()
        if step % evaluate_every and step < steps:
            continue
        fit = measure(student, held, inputs=inputs)
        run.add(fit)
        if log is not None:
            log(f"stage 1 step {step}/{steps}: loss {last:.4f}, KL {fit.mean():.4f}")
        if redraw and step < steps:
            run.redrawn += redraw_dead(
                student, fit.dead, DEAD_HEAD, run.optimizer, run.redrawn, step
            )
        if state is not None:
            run.save(state)
    run.restore_best()
    description = described(student)
    description["stage"] = "stage1"
    return Distilled(
        method=description["method"],
        loss=loss,
        inputs=inputs,
        lr=lr,
        steps=steps,
        before=run.before,
        after=measure(student, held, inputs=inputs),
        curve=run.curve,
        losses=run.losses,
        redrawn=run.redrawn,
        seconds=time.monotonic() - started,
    )


class _Distillation:
    """Progress of stage 1, and the feature maps with the lowest KL so far. With the teacher's
    inputs layers are independent problems, so that the best is chosen per layer."""

    before: Fit

    def __init__(self, student: nn.Module, settings: dict[str, Any]):
        self.maps, self.settings = feature_maps(student), settings
        parameters = list(feature_parameters(student).values())
        self.optimizer = torch.optim.AdamW(parameters, lr=settings["lr"], weight_decay=0.0)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR
        self.schedule = cosine(self.optimizer, T_max=settings["steps"])
        self.losses: list[float] = []
        self.curve: list[dict[str, Any]] = []
        self.redrawn: list[dict[str, Any]] = []
        self.best: dict[str, tuple[float, dict[str, Tensor]]] = {}

    @property
    def step(self) -> int:
        return len(self.losses)

    def start(self, fit: Fit) -> None:
        self.before = fit
        self.add(fit)

    def add(self, fit: Fit) -> None:
        each = fit.layers()
        self.curve.append({"step": self.step, "kl": each})
        together = self.settings["inputs"] == "student"
        for layer, attention in self.maps.items():
            kl = fit.mean() if together else each.get(layer, math.nan)
            if layer not in self.best or not kl >= self.best[layer][0]:
                self.best[layer] = (kl, copy.deepcopy(attention.state_dict()))

    def restore_best(self) -> None:
        for layer, (_, state) in self.best.items():
            self.maps[layer].load_state_dict(state)

    def save(self, path: Path) -> None:
        state = {
            "settings": self.settings,
            "maps": {layer: attention.state_dict() for layer, attention in self.maps.items()},
            "optimizer": self.optimizer.state_dict(),
            "plan": self.schedule.state_dict(),
            "before": asdict(self.before),
            "losses": self.losses,
            "curve": self.curve,
            "redrawn": self.redrawn,
            "best": self.best,
        }
        write_state(path, state)

    def resume(self, path: Path) -> bool:
        if not path.is_file():
            return False
        state = read_state(path, self.settings)
        for layer, attention in self.maps.items():
            attention.load_state_dict(state["maps"][layer])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["plan"])
        self.before = Fit(**state["before"])
        self.losses, self.curve = state["losses"], state["curve"]
        self.redrawn, self.best = state["redrawn"], state["best"]
        return True


def _check(
    student: nn.Module, loss: str, inputs: str, steps: int, evaluate_every: int, chunk: int
) -> None:
    check_choice("distill's loss", loss, LOSSES)
    check_choice("distill's inputs", inputs, INPUTS)
    numbers = {"steps": steps, "evaluate_every": evaluate_every, "chunk": chunk}
    for name, number in numbers.items():
        if number < 1:
            raise LunaError(f"distill's {name} must be at least 1, got {number}")
    if not feature_parameters(student):
        method = described(student)["method"]
        raise LunaError(f"'{method}' has no trainable feature map: there is nothing to distill")
    first = next(iter(feature_maps(student).values()))
    if loss != "mse" and not first.has_matrix:
        raise LunaError(f"'{first.name}' has no attention matrix to distill: use loss='mse'")


def _length(batches: Iterable[ModelInputs]) -> int:
    if not isinstance(batches, Sized):
        raise LunaError("the number of batches is unknown: give distill a number of steps")
    return len(batches)


def _endless(batches: Iterable[ModelInputs]) -> Iterator[ModelInputs]:
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise LunaError(
                "the batches ran out: give distill a list or a loader, not a used-up iterator"
            )
