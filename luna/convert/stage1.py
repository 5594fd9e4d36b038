"""Stage 1 (`distill`): the feature maps of a converted model are fitted to the attention maps of
its teacher, everything else frozen. A round is `evaluate_every` steps; after each the maps are
measured on held-out batches, and of each layer the best ones seen are kept."""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Iterable, Iterator, Sized
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypedDict

import torch
from torch import nn

from luna.base import LunaError
from luna.convert.dead_heads import Redrawn, redraw_dead
from luna.convert.loop import STATES, Log, Stage
from luna.convert.maps import Fit, MapLoss, measure
from luna.convert.recipe import LOSSES, check_choice, check_range
from luna.convert.running import ModelInputs
from luna.convert.swap import described, feature_maps, feature_parameters

KL_WARNING = 0.25  # maps that stayed above rarely recovered in finetuning
HELD_OUT_BATCHES = 2  # of the training batches, where no others are given


class Point(TypedDict):
    """The mean KL of each layer on the held-out batches, after some steps."""

    step: int
    kl: dict[str, float]


class Best(NamedTuple):
    """The feature map of a layer at its lowest KL."""

    kl: float
    state: dict[str, Any]


@dataclass
class Distilled:
    """The report of stage 1."""

    method: str
    loss: str
    lr: float
    steps: int
    before: Fit
    after: Fit
    curve: list[Point]
    losses: list[float]
    redrawn: list[Redrawn]
    seconds: float

    @property
    def warnings(self) -> list[str]:
        dead = [(layer, h) for layer, heads in self.after.dead_heads().items() for h in heads]
        return [f"{layer} head {h} is dead: its features are 0" for layer, h in dead] + [
            f"{layer}: KL {kl:.2f} after stage 1 is above {KL_WARNING}"
            for layer, kl in self.after.layers().items()
            if kl > KL_WARNING
        ]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"warnings": self.warnings}


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
    log: Log | None = None,
) -> Distilled:
    """Fit the feature maps of a converted model, in place; of each layer the best ones seen are
    kept. The map of a dead head is drawn again, once.

    student         a model from `convert`
    batches         mappings of the model's keywords (labels are ignored) or tensors
    steps           number of batches, repeated where they end; None: each batch once
    lr              rate of AdamW without weight decay, on a cosine to 0
    loss            ce: rows of the maps; mse: 1000 x squared error of the outputs; both: their sum
    held_out        batches on which the KL is measured; None: the first two of `batches`
    evaluate_every  steps between two measurements of the KL
    folder          keeps the state at every evaluation; the same call on the same batches resumes
    log             called with a line of text after each evaluation
    returns         the KL of each layer before and after, its curve, losses and warnings
    """
    if steps is None:
        if not isinstance(batches, Sized):
            raise LunaError("the number of batches is unknown: give distill a number of steps")
        steps = len(batches)
    settings = {"steps": steps, "lr": lr, "loss": loss, "evaluate_every": evaluate_every}
    check_choice("distill's loss", loss, LOSSES)
    check_range("distill's steps", steps, 1)
    check_range("distill's evaluate_every", evaluate_every, 1)
    started = time.monotonic()
    _check_student(student, loss)

    # Without held-out batches the first ones are measured on, and trained on as well.
    stream = _endless(batches)
    if held_out is None:
        held = list(itertools.islice(stream, HELD_OUT_BATCHES))
        stream = itertools.chain(held, stream)
    else:
        held = list(held_out)

    stage = Distillation(student, stream, held, settings, folder, log)
    if not stage.resume():
        stage.measure_start()
    stage.run()
    stage.load_best()
    described(student)["stage"] = "stage1"
    return stage.report(started)


def _check_student(student: nn.Module, loss: str) -> None:
    """Refuse a method that has nothing to fit, or nothing that this loss could be computed from."""
    maps = feature_maps(student)
    method = described(student)["method"]
    if not feature_parameters(student):
        raise LunaError(f"'{method}' has no trainable feature map: there is nothing to distill")
    if loss != "mse" and not next(iter(maps.values())).traits().has_matrix:
        raise LunaError(f"'{method}' has no attention matrix to distill: use loss='mse'")


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


# ---------------------------------------------------------------------- the stage


@dataclass
class Notes:
    """What the stage notes on its way."""

    losses: list[float] = field(default_factory=list)  # of each step
    curve: list[Point] = field(default_factory=list)
    redrawn: list[Redrawn] = field(default_factory=list)
    best: dict[str, Best] = field(default_factory=dict)  # by layer
    before: Fit = field(default_factory=Fit)  # the maps as they were at the start


class Distillation(Stage):
    name: ClassVar[str] = "stage 1"

    def __init__(
        self,
        student: nn.Module,
        stream: Iterator[ModelInputs],
        held_out: list[ModelInputs],
        settings: dict[str, Any],
        folder: str | Path | None,
        log: Log | None,
    ):
        self.student = student
        self.maps = feature_maps(student)
        self.stream = stream
        self.position = 0  # in the stream
        self.held_out = held_out
        self.steps: int = settings["steps"]
        self.evaluate_every: int = settings["evaluate_every"]
        self.log = log
        self.notes = Notes()
        self.map_loss = MapLoss(student, settings["loss"])
        phi = feature_parameters(student).values()
        optimizer = torch.optim.AdamW(phi, lr=settings["lr"], weight_decay=0.0)
        super().__init__(
            weights=nn.ModuleList(self.maps.values()),
            optimizer=optimizer,
            schedule=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.steps),
            settings=settings,
            state_file=None if folder is None else Path(folder) / STATES[0],
        )

    def measure_start(self) -> None:
        self.notes.before = measure(self.student, self.held_out)
        self.note(self.notes.before)

    def batches(self, number: int) -> Iterator[ModelInputs]:
        first = (number - 1) * self.evaluate_every
        end = min(number * self.evaluate_every, self.steps)
        skip = first - self.position  # of a resumed run, what the interrupted one has seen
        self.position = end
        return itertools.islice(self.stream, skip, skip + end - first)

    def backward(self, batch: ModelInputs) -> float:
        return self.map_loss.backward(batch)

    def finish(self, losses: list[float]) -> bool:
        self.notes.losses += losses
        step = len(self.notes.losses)
        fit = measure(self.student, self.held_out)
        self.note(fit)
        if self.log is not None:
            self.log(
                f"stage 1 step {step}/{self.steps}: loss {losses[-1]:.4f}, KL {fit.mean():.4f}"
            )
        if step < self.steps:
            already = self.notes.redrawn
            self.notes.redrawn += redraw_dead(self.student, fit, self.optimizer, already, step)
        return step == self.steps

    def note(self, fit: Fit) -> None:
        """Add a point to the curve, and keep the maps of the layers that have never fitted better.
        Layers without a KL (NaN) keep the last ones."""
        each = fit.layers()
        self.notes.curve.append({"step": len(self.notes.losses), "kl": each})
        for layer, attention in self.maps.items():
            kl = each.get(layer, math.nan)
            best = self.notes.best.get(layer)
            if best is None or not kl >= best.kl:
                self.notes.best[layer] = Best(kl, copy.deepcopy(attention.state_dict()))

    def load_best(self) -> None:
        for layer, best in self.notes.best.items():
            self.maps[layer].load_state_dict(best.state)

    def report(self, started: float) -> Distilled:
        return Distilled(
            method=described(self.student)["method"],
            loss=self.settings["loss"],
            lr=self.settings["lr"],
            steps=self.steps,
            before=self.notes.before,
            after=measure(self.student, self.held_out),
            curve=self.notes.curve,
            losses=self.notes.losses,
            redrawn=self.notes.redrawn,
            seconds=time.monotonic() - started,
        )

    def noted(self) -> dict[str, Any]:
        best = {layer: tuple(best) for layer, best in self.notes.best.items()}
        return vars(self.notes) | {"best": best, "before": asdict(self.notes.before)}

    def restore(self, noted: dict[str, Any]) -> None:
        best = {layer: Best(*kept) for layer, kept in noted["best"].items()}
        self.notes = Notes(**noted | {"best": best, "before": Fit(**noted["before"])})
