"""Stage 2: the whole model is finetuned on its task.

The defaults are the paper's: AdamW, lr 1e-5, no weight decay, up to 10 epochs, early stopping with
patience 3 on the task's metric (the loader decides the batch size). The paper does not state the
schedule and the gradient norm: linear decay without warm-up and norm 1, as in the LOTFormer code of
the same group. Any model can be finetuned, converted or not: the teacher and the softmax control go
through the same loop.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from luna.base import LunaError
from luna.convert.batches import Batches, ModelInputs, own_loss
from luna.convert.recipe import SCHEDULES, check_choice
from luna.convert.stage import Stage
from luna.convert.swap import describe, feature_parameters

STATE = "stage2.pt"


@dataclass
class Finetuned:
    """The report of stage 2. The best epoch was chosen on the scores that are reported, so the last
    one is reported beside it."""

    metric: str
    settings: dict[str, Any]
    epochs: list[dict[str, Any]] = field(default_factory=list)  # epoch, loss, scores, seconds
    best_epoch: int = 0
    done: bool = False

    @property
    def best(self) -> float:
        return self._score(self.best_epoch)

    @property
    def last(self) -> float:
        return self._score(len(self.epochs))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"best": self.best, "last": self.last}

    def _score(self, epoch: int) -> float:
        return self.epochs[epoch - 1]["scores"][self.metric]


def finetune(
    model: nn.Module,
    train: Callable[[int], Batches],
    evaluate: Callable[[nn.Module], Mapping[str, float]],
    *,
    metric: str,
    lr: float = 1e-5,
    phi_lr: float | None = None,
    weight_decay: float = 0.0,
    epochs: int = 10,
    patience: int = 3,
    schedule: str = "linear",
    warmup: float = 0.0,
    clip: float = 1.0,
    loss: Callable[[nn.Module, ModelInputs], Tensor] = own_loss,
    folder: str | Path | None = None,
    log: Callable[[str], None] | None = None,
) -> Finetuned:
    """Train the whole model, in place; it ends with the weights of its best epoch.

    train     the batches of epoch 1, 2, ...: a list or a loader, the same for the same number
    evaluate  the scores of the model in eval mode, by name; larger is better
    metric    the score that chooses the best epoch and stops
    phi_lr    rate of the feature maps; None: lr
    warmup    part of all steps in which the rate rises from 0, before the schedule
    loss      of a batch; by default what the model itself computes from `labels`
    folder    keeps the state after every epoch; the same call resumes there, exactly
    """
    settings = {
        "lr": lr,
        "phi_lr": phi_lr,
        "weight_decay": weight_decay,
        "epochs": epochs,
        "patience": patience,
        "schedule": schedule,
        "clip": clip,
        **({"warmup": warmup} if warmup else {}),  # records from before it existed
    }
    _check_options(settings)
    run = _Finetuning(model, metric, settings, steps=len(train(1)))
    report, state = run.report, None if folder is None else Path(folder) / STATE
    if state is not None:
        run.resume(state)

    while not report.done:
        epoch, started = len(report.epochs) + 1, time.monotonic()
        mean = run.epoch(train(epoch), loss)
        model.eval()
        with torch.no_grad():
            scores = dict(evaluate(model))
        if metric not in scores:
            raise LunaError(f"evaluate gave no '{metric}', only {', '.join(sorted(scores))}")
        seconds = time.monotonic() - started
        report.epochs.append({"epoch": epoch, "loss": mean, "scores": scores, "seconds": seconds})
        if epoch == 1 or scores[metric] > report.best:
            report.best_epoch = epoch
            run.best = {name: t.detach().clone() for name, t in model.state_dict().items()}
        report.done = epoch == epochs or epoch - report.best_epoch >= patience
        if state is not None:
            run.save(state)
        if log is not None:
            log(f"stage 2 epoch {epoch}/{epochs}: loss {mean:.4f}, {metric} {scores[metric]:.4f}")
    model.load_state_dict(run.best)
    model.eval()
    description = describe(model)
    if description is not None:
        description["stage"] = "finetuned"
    return report


class _Finetuning(Stage):
    """Progress of stage 2: the report so far, and the weights of the best epoch."""

    name = "stage 2"
    results = ("best",)

    def __init__(self, model: nn.Module, metric: str, settings: dict[str, Any], *, steps: int):
        optimizer = build_optimizer(
            model, settings["lr"], settings["phi_lr"], settings["weight_decay"]
        )
        factor, total = rate_factor(settings), steps * settings["epochs"]
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step / total))
        super().__init__(settings | {"metric": metric}, optimizer, schedule)
        self.model, self.report = model, Finetuned(metric, settings)
        self.best: dict[str, Tensor] = {}

    def epoch(self, batches: Batches, loss_of: Callable[[nn.Module, ModelInputs], Tensor]) -> float:
        """One pass over the batches; returns the mean of their losses."""

        def backward(batch: ModelInputs) -> float:
            loss = loss_of(self.model, batch)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings["clip"])
            return loss.item()

        self.model.train()
        total = 0.0
        for batch in batches:
            total += self.take_step(batch, functools.partial(backward, batch))
        return total / len(batches)

    def state(self) -> dict[str, Any]:
        return {
            "report": asdict(self.report),
            "model": self.model.state_dict(),
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def load(self, state: dict[str, Any]) -> None:
        for name in ("epochs", "best_epoch", "done"):
            setattr(self.report, name, state["report"][name])
        self.model.load_state_dict(state["model"])
        torch.set_rng_state(state["rng"])
        if torch.cuda.is_available() and state["cuda_rng"]:
            torch.cuda.set_rng_state_all(state["cuda_rng"])


def build_optimizer(
    model: nn.Module, lr: float, phi_lr: float | None, weight_decay: float
) -> torch.optim.AdamW:
    """AdamW with a group of its own for the feature maps."""
    phi = feature_parameters(model) if describe(model) is not None else {}
    ids = {id(p) for p in phi.values()}
    host = [p for p in model.parameters() if p.requires_grad and id(p) not in ids]
    maps = [p for p in phi.values() if p.requires_grad]
    groups: list[dict[str, Any]] = [{"params": host}] if host else []
    if maps:
        groups.append({"params": maps, "lr": lr if phi_lr is None else phi_lr})
    return torch.optim.AdamW(groups, lr=lr, weight_decay=weight_decay)


def rate_factor(settings: Mapping[str, Any]) -> Callable[[float], float]:
    """The factor of the rate at progress t in [0, 1)."""
    warmup = settings.get("warmup", 0.0)
    decay = {
        "linear": lambda t: 1 - t,
        "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2,
        "constant": lambda t: 1.0,
    }[settings["schedule"]]
    return lambda t: t / warmup if t < warmup else decay((t - warmup) / (1 - warmup))


def _check_options(settings: dict[str, Any]) -> None:
    for name in ("epochs", "patience"):
        if settings[name] < 1:
            raise LunaError(f"finetune's {name} must be at least 1, got {settings[name]}")
    for name in ("lr", "clip"):
        if settings[name] <= 0:
            raise LunaError(f"finetune's {name} must be above 0, got {settings[name]}")
    if not 0 <= settings.get("warmup", 0) < 1:
        raise LunaError(
            f"finetune's warmup must be at least 0 and below 1, got {settings['warmup']}"
        )
    check_choice("finetune's schedule", settings["schedule"], SCHEDULES)
