"""Callbacks that a run may choose, several at once: `callbacks=[ema,grad_norm]`.

They are Lightning's callbacks, in files of configs/callbacks/ or of the user's. Three words beside
Lightning's own say what a run must know:

    moves_results: false   in its file: it changes nothing, so it is no part of the run's identity
    state_dict             what a resumed run needs to go on exactly; without it such a callback is
                           refused on resume, unless it says `stateless: true`
    columns, row           numbers for metrics.csv and the loggers
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from torch import Tensor

from lra.base.errors import UserError
from lra.base.targets import built, check_options, resolve
from lra.settings.own import arguments, chosen, decides
from lra.settings.run import Run

# Of Lightning's, those that would change what the record says of a run, or never end.
REFUSED = {
    "GradientAccumulationScheduler": "takes several batches for a step, and a protocol one",
    "StochasticWeightAveraging": "averages by epochs, and a run counts steps: use callbacks=ema",
    "LearningRateFinder": "changes the rate of a run: sweep protocol.recipe.lr=0.001,0.003",
    "BatchSizeFinder": "changes the batch of a run: set protocol.recipe.batch",
    "BaseFinetuning": "freezes a pretrained backbone, and a run here trains all weights",
}
TESTED = "tested_weights"  # in the state of a callback: what is tested in place of the weights
FOLDER = "{folder}"  # in an option: the run's folder


def build_callbacks(run: Run, folder: str = "") -> list[pl.Callback]:
    """Build the callbacks of a run in the order of their names; UserError for the first that cannot
    be built or would break what the run promises."""
    made: list[pl.Callback] = []
    for setting, options in chosen(run):
        if setting.startswith("callbacks."):
            made.append(_build(setting, options, run, folder))
    keys = [callback.state_key for callback in made if keeps_state(type(callback))]
    if double := next((key for key in keys if keys.count(key) > 1), None):
        raise UserError(
            f"two callbacks keep their state as '{double:.60}': give their class a state_key that "
            "differs (Lightning's Callback.state_key)"
        )
    return made


def _build(setting: str, options: dict[str, Any], run: Run, folder: str) -> pl.Callback:
    target, kind = options["_target_"], resolve(setting, options["_target_"])
    words = {
        key: value.replace(FOLDER, folder) if isinstance(value, str) else value
        for key, value in arguments(options).items()
    }
    check_options(setting, kind, words)
    for name in (above.__name__ for above in getattr(kind, "__mro__", ())):
        if name in REFUSED:
            raise UserError(f"{setting}={target} {REFUSED[name]}")
    callback = built(setting, kind, target, **words)
    if not isinstance(callback, pl.Callback):
        raise UserError(f"{setting}={target} is no callback: derive it from Lightning's Callback")
    if hasattr(callback, "columns") and not hasattr(callback, "row"):
        raise UserError(f"{setting}={target} has columns of metrics.csv, but no row() with values")
    if getattr(kind, "moves_results", False) and not decides(setting, options):
        raise UserError(
            f"{setting}.moves_results must be true: {target} says itself that it moves results"
        )
    if getattr(kind, "whole_weights", False) and run.trainer.strategy == "fsdp":
        raise UserError(
            f"{setting} needs all weights in one place, which trainer.strategy=fsdp divides: use "
            "ddp"
        )
    return callback


def keeps_state(kind: type) -> bool:
    hooks = ("state_dict", "on_save_checkpoint")
    return any(getattr(kind, hook) is not getattr(pl.Callback, hook) for hook in hooks)


def forgetful(run: Run) -> str | None:
    """Name a callback with which a run cannot be resumed exactly: it moves results, keeps no state,
    and does not say that it needs none."""
    for setting, options in chosen(run):
        if not setting.startswith("callbacks.") or not decides(setting, options):
            continue
        kind = resolve(setting, options["_target_"])
        if not isinstance(kind, type):  # a function that makes one
            kind = type(_build(setting, options, run, ""))
        if not (keeps_state(kind) or options.get("stateless", False)):
            return setting
    return None


# ---------------------------------------------------------------------- those that we have


class EMA(pl.Callback):
    """Keeps an exponential average of the weights, which is what is evaluated, tested and stored as
    best.ckpt; the optimiser goes on from the weights themselves.

    The decay grows with the steps, min(decay, (1 + s) / (10 + s)), so that the average of a short
    run is not that of its first weights. Buffers are those of the last step.
    """

    moves_results = whole_weights = True

    def __init__(self, decay: float = 0.999):
        if not 0 <= decay < 1:
            raise UserError(f"callbacks.ema.decay={decay} is out of range: it must be in [0, 1)")
        self.decay = decay
        self.average: dict[str, Tensor] = {}  # in float32 at least, by the names of the weights
        self.trained: dict[str, Tensor] = {}  # while the module has the average

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        for name, weights in module.named_parameters():
            kept = self.average.get(name, weights.detach())
            kind = torch.promote_types(weights.dtype, torch.float32)
            self.average[name] = kept.to(weights.device, kind, copy=True)

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        self._give(module, self.trained)
        self.trained = {}

    @torch.no_grad()
    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        step = trainer.global_step
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, weights in module.named_parameters():
            self.average[name].lerp_(weights.to(self.average[name]), 1 - decay)

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._show_average(module)

    def on_fit_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._show_average(module)  # for the test; a run that was cut there has not evaluated

    def _show_average(self, module: pl.LightningModule) -> None:
        if self.average and not self.trained:
            self.trained = {name: p.detach().clone() for name, p in module.named_parameters()}
            self._give(module, self.average)

    @torch.no_grad()
    def _give(self, module: pl.LightningModule, values: dict[str, Tensor]) -> None:
        for name, weights in module.named_parameters() if values else ():
            weights.copy_(values[name])

    def on_save_checkpoint(
        self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """In last.ckpt, from which a run resumes, are the weights themselves."""
        checkpoint["state_dict"] |= self.trained

    def state_dict(self) -> dict[str, Any]:
        return {TESTED: dict(self.average)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average = dict(state[TESTED])


class EarlyStopping(pl.Callback):
    """Ends training when the dev score has not become better for `patience` evaluations. Which
    checkpoint is tested, the protocol says as ever; `stages.last.step` of the record has the last
    step. `least` is in the unit of the score: of accuracy 0.5 is half a point."""

    moves_results = True

    def __init__(self, patience: int = 5, least: float = 0.0):
        if patience < 1:
            raise UserError(f"patience={patience} is out of range: it must be at least 1")
        self.patience, self.least = patience, least
        self.best: float | None = None
        self.waited = 0  # evaluations since the best

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self.waited >= self.patience:  # it had stopped, and was cut before its result
            trainer.should_stop = True

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        score, metric = module.evaluated["dev"]["score"], module.metric
        if self.best is None or metric.better(score, self.best + metric.sign * self.least):
            self.best, self.waited = score, 0
            return
        self.waited += 1
        if self.waited >= self.patience and trainer.global_step < trainer.max_steps:
            trainer.should_stop = True
            if trainer.is_global_zero:
                print(
                    f"stopping at step {trainer.global_step}: the score on dev has not become "
                    f"better than {metric.text(self.best)} for {self.waited} evaluations",
                    flush=True,
                )

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.waited = state["best"], state["waited"]


class GradientNorm(pl.Callback):
    """Writes the norm of all gradients, before they are clipped, into metrics.csv: the mean and the
    largest of the steps of a row."""

    columns: ClassVar = ("grad_norm", "grad_norm_max")
    whole_weights = True

    def __init__(self) -> None:
        self.seen: Tensor | None = None  # sum, largest and number, on the device
        self._step = -1

    @torch.no_grad()
    def on_before_optimizer_step(self, trainer: pl.Trainer, module: Any, optimizer: Any) -> None:
        if trainer.global_step == self._step:
            return  # a second pass of the same step
        self._step = trainer.global_step
        gradients = [p.grad.norm().float() for p in module.parameters() if p.grad is not None]
        norm = torch.stack(gradients).norm()
        now = torch.stack([norm, norm, torch.ones_like(norm)])
        if self.seen is not None:
            before = self.seen.to(now.device)
            now = torch.stack([before[0] + norm, before[1].maximum(norm), before[2] + 1])
        self.seen = now

    def row(self) -> dict[str, float]:
        """Give the numbers since the last row."""
        if self.seen is None:
            return {}
        (total, largest, count), self.seen = self.seen.tolist(), None
        return {"grad_norm": total / count, "grad_norm_max": largest}

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]
