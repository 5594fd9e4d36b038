"""Made data and small runs in float64 that golden runs share.

Examples come from Python's own generator, whose numbers are the same everywhere; no task is
prepared, so that an edit of a task moves no golden run.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import torch

from lra.data.arrays import Layout, Prepared, Split
from lra.data.loader import Loader
from lra.runs.search import folder_of
from lra.settings.compose import Run, compose
from lra.settings.presets import usual_options
from lra.training.checkpoints import Checkpoints
from lra.training.module import LRAModule
from lra.training.run import build, fit
from lra.training.trainer import LRAData

WIDTH, SHORTEST = 64, 20  # tokens of an example
SIZES = {"train": 30, "val": 24, "test": 24}  # examples: 20 steps of 4 begin the third epoch
CLASSES = 4
STEPS = 20
SETTINGS = (
    "task=listops",
    "task.source=tiny",
    "attention=uniform",
    "trainer=cpu",
    "trainer.precision=64-true",
    "trainer.progress=off",
    "compute=off",
    "model.n_layers=2",
    "model.d_model=16",
    "model.qkv_dim=16",
    "model.mlp_dim=16",
    f"protocol.data.max_length={WIDTH}",
    f"protocol.data.pad_to={WIDTH}",
    "protocol.data.mask=length",
    "protocol.recipe.batch=4",
    f"protocol.recipe.steps={STEPS}",
    "protocol.recipe.warmup=5",
    "protocol.recipe.lr=0.01",
    "protocol.recipe.weight_decay=0.1",
    "protocol.recipe.clip=norm",
    "protocol.recipe.clip_at=2.0",  # below the norms of most steps and above those of others
    "protocol.evaluation.every=4",
)
Numbers = dict[str, Any]


class Made:
    """In place of prepared data: each class has a token that is more frequent in its examples."""

    fingerprint = "made"

    def __init__(self, layout: Layout):
        self.layout = layout
        self.draw = Random(1).random
        self.splits = {name: self._split(name, n) for name, n in SIZES.items()}

    def split(self, name: str) -> Split:
        return self.splits[name]

    def _below(self, n: int) -> int:
        return int(self.draw() * n)

    def _split(self, name: str, n: int) -> Split:
        ids = np.zeros((n, WIDTH), np.int64)
        lengths = np.array([SHORTEST + self._below(WIDTH - SHORTEST + 1) for _ in range(n)])
        labels = np.array([self._below(CLASSES) for _ in range(n)], np.uint8)
        for row, length, label in zip(ids, lengths, labels, strict=True):
            row[:length] = [self._token(int(label)) for _ in range(length)]
        return Split(name, self.layout, WIDTH, ids, lengths, labels, None)

    def _token(self, label: int) -> int:
        """One of all, or in one of ten cases the one of the class."""
        any_token = 1 + self._below(self.layout.vocab - 1)
        return 1 + label if self.draw() < 0.1 else any_token


def made(layout: Layout) -> Prepared:
    return cast(Prepared, Made(layout))


@cache
def small(*words: str) -> Run:
    """The small run with more settings; not to be changed in place."""
    return compose([*SETTINGS, *words])


def of_method(name: str, run: Run, **options: Any) -> Run:
    """A run with a method at the usual options of its file, which are made for short inputs."""
    return replace(run, attention=usual_options(name, "recall", "matched") | options)


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """Weights are drawn in float64: in float32 their last bits differ between processors."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@dataclass
class Trained:
    """What a run of the small settings leaves."""

    module: LRAModule
    losses: list[float]
    checkpoints: Checkpoints
    norms: dict[str, float]  # of all weights: before, after, and of the best checkpoint


def norm_of(tensors: Any) -> float:
    """The norm of all together."""
    return float(torch.stack([t.detach().double().norm() for t in tensors]).norm())


def watched(step: Callable[..., torch.Tensor], losses: list[float]) -> Callable[..., torch.Tensor]:
    def training_step(*arguments: Any) -> torch.Tensor:
        loss = step(*arguments)
        losses.append(float(loss.detach()))
        return loss

    return training_step


def trained(run: Run, change: Callable[[LRAModule], None] | None = None) -> Trained:
    """Train by the project's own steps: its network, loaders, trainer, callbacks, checkpoints."""
    from lra import data

    prepared, losses = made(data.of(run.task)), list[float]()
    with tempfile.TemporaryDirectory() as runs, in_float64():
        run = replace(run, runs_dir=runs, data_dir=runs)
        module = build(run)
        if change is not None:
            change(module)
        norms = {"before": norm_of(module.network.parameters())}
        module.training_step = watched(module.training_step, losses)  # type: ignore[method-assign]
        folder = folder_of(run, prepared.fingerprint)
        Path(folder.path).mkdir(parents=True)
        _, checkpoints = fit(module, LRAData(run, prepared), folder)
        norms["after"] = norm_of(module.network.parameters())
        if checkpoints.best_step:
            checkpoints.load_best(module)
            norms["best"] = norm_of(module.network.parameters())
    return Trained(module, losses, checkpoints, norms)


def numbers_of(result: Trained) -> Numbers:
    best = result.checkpoints.best or {"step": 0, "score": 0.0}
    return {
        "losses": result.losses,
        "weights": result.norms,
        "dev": {"step": best["step"], "score": best["score"]},
    }


def one_step(run: Run) -> Numbers:
    """The loss of one batch, and the norm of its gradients, in training."""
    from lra import data

    split = made(data.of(run.task)).split("train")
    loader = Loader(split, 6, rules=run.protocol.data, seed=run.seed, steps=1)
    with in_float64():
        module = build(run).double().train()
        [batch] = loader
        torch.manual_seed(7)
        loss = module.target.loss(module.network(batch.ids, batch.mask), batch.labels)
        loss.backward()
    gradients = norm_of(p.grad for p in module.parameters() if p.grad is not None)
    return {"loss": float(loss.detach()), "gradients": gradients}
