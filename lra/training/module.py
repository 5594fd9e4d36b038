"""The LightningModule of every run: a network that learns, and is scored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lra.base.config import Recipe
from lra.data.loader import Batch
from lra.metrics import metric
from lra.metrics.answers import Answers
from lra.metrics.metric import Metric
from lra.metrics.target import Classes, Part, Target
from lra.training.clock import Clock
from lra.training.meter import Measured, Meter, of_each_process
from lra.training.optimizer import build_optimizer, needs_closure
from lra.training.process import random_state, reuse_memory, set_random_state
from lra.training.schedule import build_schedule, check_rates
from luna.base import Method, autocast_off

FUSED_ON = {"cuda"}  # types of device whose optimiser is one kernel


class Asked(Protocol):
    """What a module needs to know about its task; the tasks of lra.data have it."""

    @property
    def target(self) -> Target: ...
    @property
    def metric_names(self) -> list[str]: ...


def pieces_of(batch: Batch, size: int, target: Target) -> list[tuple[Batch, float]]:
    """Cut a batch into pieces of so many examples, the last of which may be smaller, each with its
    share of what the batch scores; one that scores nothing is left out."""
    ids, mask, labels = batch
    starts = range(0, len(ids), size)
    cut = [
        Batch(ids[i : i + size], None if mask is None else mask[i : i + size], labels[i : i + size])
        for i in starts
    ]
    scored = [len(piece.ids) for piece in cut]
    if isinstance(target, Classes) and labels.ndim > 1:  # those of tokens
        counts = [target.scored(piece.labels).sum() for piece in cut]
        scored = torch.stack(counts).tolist()
    both = [(piece, n / sum(scored)) for piece, n in zip(cut, scored, strict=True) if n]
    return both or [(batch, 1.0)]


class LRAModule(pl.LightningModule):
    """Trains a network by the loss of its task's target, and scores it by the task's metrics: on
    test from the answers that are stored, on dev from loss and counts where these suffice."""

    def __init__(
        self,
        network: nn.Module,
        recipe: Recipe,
        asked: Asked,
        seed: int = 0,
        *,
        optimizer: Mapping[str, Any] = {},
        schedule: Mapping[str, Any] = {},
        in_pieces: int | None = None,
    ):
        super().__init__()
        self.in_pieces = in_pieces  # examples that pass at once; None: the batch
        self.network, self.recipe, self.seed = network, recipe, seed
        self.chosen = optimizer, schedule  # by `_target_`; empty where the recipe says all
        self.several_passes = False  # whether the optimiser passes through the network repeatedly
        self._passed, self._drawn = -1, dict[str, Tensor]()  # its last step, and its random state
        self.target = asked.target
        self.metrics = [metric.get(name) for name in asked.metric_names]
        self.counts = isinstance(self.target, Classes)
        self.random_state: dict[str, Tensor] = {}  # of a checkpoint, until the first batch
        self.meter = Meter()  # of training, since the last row of metrics
        self.evaluation = Meter()
        # Of each batch of an evaluation, where they are kept: answers, and how many an example has.
        self._answers: list[tuple[Part, np.ndarray]] = []
        self.evaluated: dict[str, dict[str, Any]] = {}  # by split: counts and score, unrounded
        self.clock = Clock()

    @property
    def metric(self) -> Metric:
        """The metric of the score."""
        return self.metrics[0]

    def configure_optimizers(self) -> Any:
        # Lightning cannot clip the gradients of a fused optimiser that unscales them itself.
        fused = FUSED_ON if not str(self.trainer.precision).startswith("16") else set()
        optimizer, schedule = self.build_optimizer(fused=self.device.type in fused or None)
        self.several_passes = needs_closure(type(optimizer))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def build_optimizer(self, *, fused: bool | None = None) -> tuple[Optimizer, LRScheduler]:
        chosen, schedule = self.chosen
        optimizer = build_optimizer(self, self.recipe, chosen, fused=fused)
        return optimizer, build_schedule(optimizer, self.recipe, schedule)

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        super().lr_scheduler_step(scheduler, metric)
        if schedule := self.chosen[1]:
            check_rates(scheduler.optimizer, schedule["_target_"])

    def on_train_start(self) -> None:
        torch.manual_seed(self.seed * 1_000_003 + self.trainer.global_rank)
        if self.device.type == "cpu":
            reuse_memory()
        self.clock.start("starting")

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        if self.random_state:
            set_random_state(self.random_state, self.device)
            self.random_state = {}

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        first = not self.several_passes or self._begin_pass()
        if self.in_pieces is not None:
            return self._in_pieces(batch, self.in_pieces, first)
        return self._loss(batch, first)

    def _loss(self, batch: Batch, measured: bool) -> Tensor:
        logits = self.network(batch.ids, batch.mask)
        loss = self.target.loss(logits, batch.labels)
        if measured:
            self._measure(self.meter, loss, logits, batch.labels)
        return loss

    def _in_pieces(self, batch: Batch, size: int, measured: bool) -> Tensor:
        """Add up the gradients of all pieces but the last, whose own Lightning adds: DDP sends what
        is there by then. The loss of a piece is a mean over what it scores, so it counts by its
        share of that. Returns the loss of the batch."""
        optimizer, plugin = self.trainer.optimizers[0], self.trainer.precision_plugin
        optimizer.zero_grad()
        total = torch.zeros((), device=self.device)
        *others, (piece, share) = pieces_of(batch, size, self.target)
        for other, its_share in others:
            loss = self._loss(other, measured) * its_share
            total += loss.detach()
            with autocast_off(self.device):  # in which kernels of ours would compute gradients
                plugin.pre_backward(loss, self).backward()
            torch.clear_autocast_cache()  # weights in half precision, whose graph is gone
        return self._loss(piece, measured) * share + total

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        """Lightning calls it before its backward pass, when those of pieces are done."""
        if self.in_pieces is None:
            super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    def _begin_pass(self) -> bool:
        """Begin a pass, and say if it is the first of its step. An optimiser such as SAM measures
        its gradients on one function: each pass draws the dropout of the first, which alone is what
        metrics show."""
        first = self._passed != self.global_step
        self._passed = self.global_step
        if first:
            self._drawn = random_state(self.device)
        else:
            set_random_state(self._drawn, self.device)
        return first

    @torch.no_grad()
    def _measure(self, meter: Meter, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        scored = self.target.scored(labels).sum()
        hits = (logits.argmax(-1) == labels).sum() if self.counts else torch.zeros_like(scored)
        meter.update(loss, hits, scored, len(labels))

    def score_of(self, measured: Measured) -> float | None:
        """Give the score, where it follows from loss and counts; None where it does not."""
        if not measured.scored:
            return float("nan")
        return self.metric.from_counts(measured.loss, measured.hits, measured.scored)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        for module in self.network.modules():
            if isinstance(module, Method):
                module.after_step()
        self.clock.step()

    def on_train_end(self) -> None:
        self.clock.start("")

    def on_validation_start(self) -> None:
        self.clock.start("evaluation")

    def on_validation_end(self) -> None:
        self.clock.start("training")

    def on_validation_epoch_start(self) -> None:
        self.evaluation, self._answers = Meter(), []

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        logits = self.network(batch.ids, batch.mask).float()
        loss = self.target.loss(logits, batch.labels)
        self._measure(self.evaluation, loss, logits, batch.labels)
        if self.trainer.testing or self.metric.from_counts(0.0, 0, 1) is None:
            scored = self.target.scored(batch.labels)
            part = self.target.reduce(logits[scored].cpu(), batch.labels[scored].cpu())
            self._answers.append((part, scored.reshape(len(scored), -1).sum(1).cpu().numpy()))

    def on_validation_epoch_end(self) -> None:
        split = "test" if self.trainer.testing else "dev"
        measured = self.evaluation.read(self.trainer)
        score = self.score_of(measured)
        if score is None or self.trainer.testing:  # a record's score follows from its answers
            score = self.metric.score(self.answers(), self.target)
        # Lightning keeps float32, in which a score is no multiple of 1 / n: callbacks get it there,
        # records from here. Loggers get it from lra.training.progress.Metrics.
        seen = {"loss": measured.loss, "score": score}
        self.log_dict({f"{split}/{name}": value for name, value in seen.items()}, logger=False)
        self.evaluated[split] = {"score": score} | measured.counts(self.metric)

    on_test_epoch_start = on_validation_epoch_start
    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    def dead_rows(self) -> float | None:
        """Return the fraction of queries that attended to nothing, in the worst layer on the last
        batch evaluated. Feature maps with zeros fail so; None for other methods."""
        dead = [getattr(m, "dead_fraction", None) for m in self.network.modules()]
        return max((float(x) for x in dead if x is not None), default=None)

    def answers(self) -> Answers:
        """Return the answers of the last test, of all processes, in the order of the examples."""
        shares = of_each_process(self.trainer, self._answers)
        in_order = [share for batch in zip(*shares, strict=True) for share in batch]
        parts, sizes = zip(*in_order, strict=True)
        return self.target.collect(parts).grouped(np.concatenate(sizes))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["clock"] = {"seconds": self.clock.read(), "steps": dict(self.clock.steps)}
        checkpoint["processes"] = of_each_process(
            self.trainer,
            {"meter": self.meter.sums, "random_state": random_state(self.device)},
        )

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        clock = checkpoint["clock"]
        self.clock.seconds, self.clock.steps = clock["seconds"], clock["steps"]
        process = checkpoint["processes"][self.trainer.global_rank]
        self.meter.sums, self.random_state = process["meter"], process["random_state"]
