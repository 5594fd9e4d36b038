"""Stage 2: the whole model finetuned on its task.

The defaults are the paper's: AdamW, lr 1e-5, no weight decay, up to 10 epochs, early stopping with
patience 3 on the task's metric (batches of 8 are the loader's business). The schedule and the
gradient norm are not stated there: linear decay without warm-up and norm 1, as in the LOTFormer
code of the same group. Works on any model, converted or not: the teacher and the continued-softmax
control go through the same loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from luna.base import LunaError
from luna.convert.batches import Batch, Batches, forward, memory_advice
from luna.convert.states import read_state, write_state
from luna.convert.swap import describe, feature_parameters

Schedule = Literal["linear", "cosine", "constant"]
SCHEDULES: dict[str, Callable[[float], float]] = {  # of progress in [0, 1)
    "linear": lambda t: 1 - t,
    "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2,
    "constant": lambda t: 1.0,
}
STATE = "stage2.pt"


@dataclass
class Finetuned:
    """The record of stage 2. Best and last epoch are both kept: the best was chosen on the scores
    that are reported."""

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
    schedule: Schedule = "linear",
    warmup: float = 0.0,
    clip: float = 1.0,
    loss: Callable[[nn.Module, Batch], Tensor] | None = None,
    folder: str | Path | None = None,
    log: Callable[[str], None] | None = None,
) -> Finetuned:
    """Train everything, in place; the weights of the best epoch are in the model at the end.

    train     the batches of an epoch (1, 2, ...): a list or a loader, the same for the same number
    evaluate  of the model in eval mode: numbers by name, larger is better
    metric    the one of them that selects and stops
    phi_lr    of the feature maps, `lr` unless given
    warmup    part of all steps in which the rate rises from 0, before the schedule
    loss      of a batch; the model's own (`labels` among its keywords) unless given
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
        **({"warmup": warmup} if warmup else {}),  # states made before it existed still resume
    }
    _check(settings)
    report = Finetuned(metric, settings)
    optimizer = _optimizer(model, lr, phi_lr, weight_decay)
    steps = len(train(1))
    rate = _rate(schedule, warmup)
    plan = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: rate(i / (steps * epochs)))
    state = None if folder is None else Path(folder) / STATE
    best: dict[str, Tensor] = {}
    if state is not None and state.is_file():
        best = _resume(state, report, model, optimizer, plan)

    while not report.done:
        epoch, started = len(report.epochs) + 1, time.monotonic()
        mean = _epoch(model, train(epoch), optimizer, plan, clip, loss or own_loss)
        model.eval()
        with torch.no_grad():
            scores = dict(evaluate(model))
        if metric not in scores:
            raise LunaError(f"evaluate gave no '{metric}', only {', '.join(sorted(scores))}")
        seconds = time.monotonic() - started
        report.epochs.append({"epoch": epoch, "loss": mean, "scores": scores, "seconds": seconds})
        if epoch == 1 or scores[metric] > report.best:
            report.best_epoch, best = epoch, _weights(model)
        report.done = epoch == epochs or epoch - report.best_epoch >= patience
        if state is not None:
            _save(state, report, model, optimizer, plan, best)
        if log is not None:
            log(f"stage 2 epoch {epoch}/{epochs}: loss {mean:.4f}, {metric} {scores[metric]:.4f}")
    model.load_state_dict(best)
    model.eval()
    block = describe(model)
    if block is not None:
        block["stage"] = "finetuned"
    return report


def _rate(schedule: Schedule, warmup: float) -> Callable[[float], float]:
    """The rate's factor at progress t in [0, 1)."""
    decay = SCHEDULES[schedule]
    return lambda t: t / warmup if t < warmup else decay((t - warmup) / (1 - warmup))


def _epoch(
    model: nn.Module,
    batches: Batches,
    optimizer: torch.optim.Optimizer,
    plan: torch.optim.lr_scheduler.LambdaLR,
    clip: float,
    loss_of: Callable[[nn.Module, Batch], Tensor],
) -> float:
    """One pass over the batches; the mean of their losses."""
    model.train()
    total, n = 0.0, 0
    for batch in batches:
        with memory_advice(batch):
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            if not math.isfinite(loss.item()):
                rate = optimizer.param_groups[0]["lr"]
                raise LunaError(f"stage 2 diverged (loss {loss.item()} at lr {rate:.1e}): lower lr")
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
        plan.step()
        total, n = total + loss.item(), n + 1
    return total / n


def own_loss(model: nn.Module, batch: Batch) -> Tensor:
    loss = getattr(forward(model, batch, labels=True), "loss", None)
    if loss is None:
        raise LunaError("the model returned no loss: give batches with 'labels', or loss=")
    return loss


def _optimizer(
    model: nn.Module, lr: float, phi_lr: float | None, weight_decay: float
) -> torch.optim.AdamW:
    phi = feature_parameters(model) if describe(model) is not None else {}
    ids = {id(p) for p in phi.values()}
    host = [p for p in model.parameters() if p.requires_grad and id(p) not in ids]
    maps = [p for p in phi.values() if p.requires_grad]
    groups: list[dict[str, Any]] = [{"params": host}] if host else []
    if maps:
        groups.append({"params": maps, "lr": lr if phi_lr is None else phi_lr})
    return torch.optim.AdamW(groups, lr=lr, weight_decay=weight_decay)


# ---------------------------------------------------------------------- resuming


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _save(
    path: Path,
    report: Finetuned,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    plan: torch.optim.lr_scheduler.LambdaLR,
    best: dict[str, Tensor],
) -> None:
    state = {
        "settings": report.settings | {"metric": report.metric},
        "report": asdict(report),
        "model": model.state_dict(),
        "best": best,
        "optimizer": optimizer.state_dict(),
        "plan": plan.state_dict(),
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }
    write_state(path, state)


def _resume(
    path: Path,
    report: Finetuned,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    plan: torch.optim.lr_scheduler.LambdaLR,
) -> dict[str, Tensor]:
    """The best weights so far; everything else goes where it came from."""
    state = read_state(path, report.settings | {"metric": report.metric})
    saved = state["report"]
    report.epochs, report.best_epoch = saved["epochs"], saved["best_epoch"]
    report.done = saved["done"]
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    plan.load_state_dict(state["plan"])
    torch.set_rng_state(state["rng"])
    if torch.cuda.is_available() and state["cuda_rng"]:
        torch.cuda.set_rng_state_all(state["cuda_rng"])
    return state["best"]


def _check(settings: dict[str, Any]) -> None:
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
    if settings["schedule"] not in SCHEDULES:
        raise LunaError(
            f"finetune's schedule must be one of {', '.join(SCHEDULES)}, "
            f"got {settings['schedule']!r}"
        )
