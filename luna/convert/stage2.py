"""Stage 2 (`finetune`): the whole model is trained on its task. A round is an epoch; after each the
model is scored, and it ends as it was after its best epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor, nn

from luna.base import LunaError
from luna.convert.loop import STATES, Batches, Log, Stage
from luna.convert.maps import LossOf
from luna.convert.recipe import SCHEDULES, check_choice, check_range
from luna.convert.running import ModelInputs, own_loss
from luna.convert.swap import describe, feature_parameters

CLIP = 1.0  # norm of the gradients

Evaluate = Callable[[nn.Module], Mapping[str, float]]


class Epoch(TypedDict):
    """What an epoch led to: its number from 1, mean loss, scores by name, and its duration."""

    epoch: int
    loss: float
    scores: dict[str, float]
    seconds: float


@dataclass
class Finetuned:
    """The report of stage 2. The best epoch was chosen on the scores that are reported, so the last
    one is reported beside it."""

    metric: str
    settings: dict[str, Any]
    epochs: list[Epoch]
    best_epoch: int

    @property
    def best(self) -> float:
        return self.epochs[self.best_epoch - 1]["scores"][self.metric]

    @property
    def last(self) -> float:
        return self.epochs[-1]["scores"][self.metric]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"best": self.best, "last": self.last}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The numbers of stage 2."""

    lr: float
    phi_lr: float | None
    weight_decay: float
    epochs: int
    patience: int
    schedule: str
    clip: float = CLIP
    warmup: float

    def __post_init__(self) -> None:
        check_range("finetune's epochs", self.epochs, 1)
        check_range("finetune's patience", self.patience, 1)
        if not 0 <= self.warmup < 1:
            raise LunaError(f"finetune's warmup must be at least 0 and below 1, got {self.warmup}")
        check_choice("finetune's schedule", self.schedule, SCHEDULES)


def finetune(
    model: nn.Module,
    train: Callable[[int], Batches],
    evaluate: Evaluate,
    *,
    metric: str,
    lr: float = 1e-5,
    phi_lr: float | None = None,
    weight_decay: float = 0.0,
    epochs: int = 10,
    patience: int = 3,
    schedule: str = "linear",
    warmup: float = 0.0,
    loss: LossOf = own_loss,
    folder: str | Path | None = None,
    log: Log | None = None,
) -> Finetuned:
    """Train the whole model, converted or not, in place; it ends as it was after its best epoch.

    The defaults are the paper's: AdamW, lr 1e-5, no weight decay, up to 10 epochs, early stopping
    with patience 3. It does not state schedule and gradient norm: linear decay without warm-up and
    norm 1, as in the LOTFormer code of the same group.

    model         any that gives a loss from `labels`, or of which `loss` computes one
    train         the batches of epoch 1, 2, ...: a list or a loader, the same for the same number
    evaluate      the scores of the model in eval mode, by name; larger is better
    metric        the score that chooses the best epoch and stops
    lr            rate of AdamW
    phi_lr        rate of the feature maps; None: lr
    weight_decay  of AdamW
    epochs        at most
    patience      stops after so many epochs without a better score
    schedule      of the rate: linear, cosine or constant
    warmup        part of all steps in which the rate rises from 0, before the schedule
    loss          of a batch; by default what the model itself computes from `labels`
    folder        keeps the state after every epoch; the same call resumes there, exactly
    log           called with a line of text after each epoch
    returns       the scores of each epoch, and which was the best
    """
    settings = Settings(
        lr=lr,
        phi_lr=phi_lr,
        weight_decay=weight_decay,
        epochs=epochs,
        patience=patience,
        schedule=schedule,
        warmup=warmup,
    )
    stage = Finetuning(model, train, evaluate, metric, settings, loss, folder, log)
    stage.resume()
    stage.run()
    stage.load_best()
    description = describe(model)
    if description is not None:
        description["stage"] = "finetuned"
    return Finetuned(metric, asdict(settings), stage.notes.epochs, stage.notes.best_epoch)


# ---------------------------------------------------------------------- the stage


@dataclass
class Notes:
    """What the stage notes on its way."""

    epochs: list[Epoch] = field(default_factory=list)
    best_epoch: int = 0  # its number; 0: none yet
    best: dict[str, Tensor] = field(default_factory=dict)  # the model after its best epoch


class Finetuning(Stage):
    name: ClassVar[str] = "stage 2"

    def __init__(
        self,
        model: nn.Module,
        train: Callable[[int], Batches],
        evaluate: Evaluate,
        metric: str,
        settings: Settings,
        loss: LossOf,
        folder: str | Path | None,
        log: Log | None,
    ):
        self.model = model
        self.train = train
        self.evaluate = evaluate
        self.metric = metric
        self.epochs = settings.epochs
        self.patience = settings.patience
        self.clip = settings.clip
        self.loss = loss
        self.log = log
        self.notes = Notes()
        self.started = time.monotonic()  # the epoch
        optimizer = build_optimizer(model, settings.lr, settings.phi_lr, settings.weight_decay)
        factor = rate_factor(settings.schedule, settings.warmup)
        total = len(train(1)) * settings.epochs
        super().__init__(
            weights=model,
            optimizer=optimizer,
            schedule=torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: factor(step / total)
            ),
            settings=asdict(settings) | {"metric": metric},
            state_file=None if folder is None else Path(folder) / STATES[1],
        )

    def batches(self, number: int) -> Batches:
        self.started = time.monotonic()
        self.model.train()
        return self.train(number)

    def backward(self, batch: ModelInputs) -> float:
        value = self.loss(self.model, batch)
        value.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        return value.item()

    def finish(self, losses: list[float]) -> bool:
        scores = self.scores()
        epoch = len(self.notes.epochs) + 1
        mean = sum(losses) / len(losses)
        seconds = time.monotonic() - self.started
        self.notes.epochs.append(
            {"epoch": epoch, "loss": mean, "scores": scores, "seconds": seconds}
        )
        if epoch == 1 or scores[self.metric] > self.best_score():
            self.notes.best_epoch = epoch
            state = self.model.state_dict()
            self.notes.best = {name: t.detach().clone() for name, t in state.items()}
        if self.log is not None:
            self.log(
                f"stage 2 epoch {epoch}/{self.epochs}: loss {mean:.4f}, "
                f"{self.metric} {scores[self.metric]:.4f}"
            )
        return epoch == self.epochs or epoch - self.notes.best_epoch >= self.patience

    def scores(self) -> dict[str, float]:
        self.model.eval()
        with torch.no_grad():
            scores = dict(self.evaluate(self.model))
        if self.metric not in scores:
            raise LunaError(f"evaluate gave no '{self.metric}', only {', '.join(sorted(scores))}")
        return scores

    def best_score(self) -> float:
        return self.notes.epochs[self.notes.best_epoch - 1]["scores"][self.metric]

    def load_best(self) -> None:
        self.model.load_state_dict(self.notes.best)
        self.model.eval()

    def noted(self) -> dict[str, Any]:
        return vars(self.notes)

    def restore(self, noted: dict[str, Any]) -> None:
        self.notes = Notes(**noted)


def build_optimizer(
    model: nn.Module, lr: float, phi_lr: float | None, weight_decay: float
) -> torch.optim.AdamW:
    """AdamW with a group of its own for the feature maps."""
    phi = feature_parameters(model) if describe(model) is not None else {}
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    host = [p for name, p in trained if name not in phi]
    maps = [p for name, p in trained if name in phi]
    groups = [{"params": host, "lr": lr}, {"params": maps, "lr": lr if phi_lr is None else phi_lr}]
    return torch.optim.AdamW([g for g in groups if g["params"]], weight_decay=weight_decay)


def rate_factor(schedule: str, warmup: float = 0.0) -> Callable[[float], float]:
    """Return the factor of the rate at progress t in [0, 1)."""
    decay: Callable[[float], float] = {
        "linear": lambda t: 1 - t,
        "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2,
        "constant": lambda t: 1.0,
    }[schedule]
    return lambda t: t / warmup if t < warmup else decay((t - warmup) / (1 - warmup))
