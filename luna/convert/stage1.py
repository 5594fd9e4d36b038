"""Stage 1: the feature maps are fitted to the teacher's attention maps; everything else is frozen.

layerwise.py has the losses and where they are computed, fit.py what is measured.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from luna.base import Attention, LunaError
from luna.convert.batches import ModelInputs
from luna.convert.fit import DEAD_HEAD, Distilled, Fit, measure
from luna.convert.layerwise import Layerwise
from luna.convert.recipe import LOSSES, check_choice
from luna.convert.stage import Stage
from luna.convert.swap import build_like, described, feature_maps, feature_parameters

STATE = "stage1.pt"


def distill(
    student: nn.Module,
    batches: Iterable[ModelInputs],
    *,
    steps: int | None = None,
    lr: float = 3e-2,
    loss: str = "ce",
    held_out: Iterable[ModelInputs] | None = None,
    evaluate_every: int = 50,
    folder: str | Path | None = None,
    log: Callable[[str], None] | None = None,
) -> Distilled:
    """Fit the feature maps of a converted model, in place; the best ones seen are kept. The map of
    a dead head is drawn again, once.

    batches    mappings of the model's keywords (labels are ignored) or tensors
    steps      number of batches, repeated where they end; None: each batch once
    lr         rate of AdamW without weight decay, on a cosine to 0
    loss       ce: rows of the maps; mse: 1000 x squared error of the outputs; both: their sum
    held_out   batches on which the KL is measured; None: the first two of `batches`
    folder     keeps the state at every evaluation; the same call on the same batches resumes there
    """
    steps = _length(batches) if steps is None else steps
    _check_options(student, loss, steps, evaluate_every)
    started = time.monotonic()
    stream = _endless(batches)
    held = list(itertools.islice(stream, 2)) if held_out is None else list(held_out)
    if held_out is None:  # they are trained on as well
        stream = itertools.chain(held, stream)
    losses = Layerwise(student, loss)
    run = _Distillation(student, {"steps": steps, "lr": lr, "loss": loss})
    state = None if folder is None else Path(folder) / STATE
    if state is None or not run.resume(state):
        run.before = measure(student, held)
        run.add(run.before)

    for batch in itertools.islice(stream, run.step, steps):
        run.losses.append(run.take_step(batch, functools.partial(losses.backward, batch)))
        step = run.step
        if step % evaluate_every and step < steps:
            continue
        fit = measure(student, held)
        run.add(fit)
        if log is not None:
            log(f"stage 1 step {step}/{steps}: loss {run.losses[-1]:.4f}, KL {fit.mean():.4f}")
        if step < steps:
            run.redrawn += redraw_dead(student, fit.dead, run.optimizer, run.redrawn, step)
        if state is not None:
            run.save(state)
    for layer, (_, best) in run.best.items():
        run.maps[layer].load_state_dict(best)
    description = described(student)
    description["stage"] = "stage1"
    return Distilled(
        method=description["method"],
        loss=loss,
        lr=lr,
        steps=steps,
        before=run.before,
        after=measure(student, held),
        curve=run.curve,
        losses=run.losses,
        redrawn=run.redrawn,
        seconds=time.monotonic() - started,
    )


class _Distillation(Stage):
    """Progress of stage 1, and of each layer the feature map with the lowest KL so far: layers are
    independent problems."""

    name = "stage 1"
    results = ("losses", "curve", "redrawn", "best")
    before: Fit

    def __init__(self, student: nn.Module, settings: dict[str, Any]):
        parameters = list(feature_parameters(student).values())
        optimizer = torch.optim.AdamW(parameters, lr=settings["lr"], weight_decay=0.0)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=settings["steps"])
        super().__init__(settings, optimizer, cosine)
        self.maps = feature_maps(student)
        self.losses: list[float] = []
        self.curve: list[dict[str, Any]] = []
        self.redrawn: list[dict[str, Any]] = []
        self.best: dict[str, tuple[float, dict[str, Tensor]]] = {}

    @property
    def step(self) -> int:
        return len(self.losses)

    def add(self, fit: Fit) -> None:
        each = fit.layers()
        self.curve.append({"step": self.step, "kl": each})
        for layer, attention in self.maps.items():
            kl = each.get(layer, math.nan)
            if layer not in self.best or not kl >= self.best[layer][0]:
                self.best[layer] = (kl, copy.deepcopy(attention.state_dict()))

    def state(self) -> dict[str, Any]:
        maps = {layer: attention.state_dict() for layer, attention in self.maps.items()}
        return {"maps": maps, "before": asdict(self.before)}

    def load(self, state: dict[str, Any]) -> None:
        for layer, attention in self.maps.items():
            attention.load_state_dict(state["maps"][layer])
        self.before = Fit(**state["before"])


def _check_options(student: nn.Module, loss: str, steps: int, evaluate_every: int) -> None:
    check_choice("distill's loss", loss, LOSSES)
    for name, number in {"steps": steps, "evaluate_every": evaluate_every}.items():
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


@torch.no_grad()
def redraw_dead(
    student: nn.Module,
    dead: dict[str, list[float]],
    optimizer: torch.optim.Optimizer,
    already: list[dict[str, Any]],
    step: int,
) -> list[dict[str, Any]]:
    """Draw the feature map of every dead head again, but no head twice; returns the heads drawn.
    Relu features that are all zero get no gradient and would stay dead."""
    maps = feature_maps(student)
    done = {(record["layer"], record["head"]) for record in already}
    drawn: list[dict[str, Any]] = []
    for layer, fractions in dead.items():
        heads = [h for h, f in enumerate(fractions) if f > DEAD_HEAD and (layer, h) not in done]
        if not heads:
            continue
        fresh = build_like(
            maps[layer], described(student)["options"], seed=1_000_003 * step + len(drawn)
        )
        if _copy_heads(maps[layer], fresh, heads, len(fractions), optimizer):
            drawn += [{"layer": layer, "head": h, "step": step} for h in heads]
    return drawn


def _copy_heads(
    attention: Attention,
    fresh: Attention,
    heads: list[int],
    n_heads: int,
    optimizer: torch.optim.Optimizer,
) -> bool:
    """Copy the slices of `heads`. A parameter that heads share is copied only if all are dead."""
    changed = False
    for old, new in zip(attention.parameters(), fresh.parameters(), strict=True):
        per_head = old.ndim > 0 and len(old) == n_heads
        if not per_head and len(heads) < n_heads:
            continue
        part = heads if per_head else slice(None)
        old[part] = new[part].to(old)
        for moment in optimizer.state.get(old, {}).values():
            if moment.shape == old.shape:
                moment[part] = 0
        changed = True
    return changed
