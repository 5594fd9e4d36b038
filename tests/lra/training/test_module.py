"""What surrounds a network in training: every attention learns on every task, and methods with a
schedule of their own follow optimiser steps."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import luna
from lra.base.config import Clip, Recipe, Schedule
from lra.data.loader import Batch, Loader
from lra.data.prepare import find_or_prepare
from lra.metrics.target import Classes
from lra.settings.compose import Run, compose
from lra.training.clock import Clock
from lra.training.module import LRAModule
from lra.training.optimizer import build_optimizer
from lra.training.run import build
from lra.training.schedule import build_schedule
from luna import Attention

# Tokens kept: a prefix of a text will do, an image is whole.
LENGTHS = {
    "listops": 100,
    "text": 100,
    "retrieval": 100,
    "image": 1024,
    "pathfinder": 1024,
    "pathx": 16384,
}
# Every attention trains on ListOps and on one more task, every task with four attentions or more.
PAIRS = [("listops", name) for name in luna.names()]
PAIRS += zip(cycle(["text", "retrieval", "image", "pathfinder"]), luna.names(), strict=False)
# A matrix of Path-X has a quarter of a billion entries a head: those that are linear in n alone.
PAIRS += [("pathx", name) for name in ("linear", "luna", "performer", "local")]


def test_speed_times_time_is_never_more_than_the_steps(monkeypatch):
    """The audit of records compares them; behind the first step a slow disk may write long."""
    clock, now = Clock(), 0.0
    monkeypatch.setattr("lra.training.clock.time", SimpleNamespace(monotonic=lambda: now))
    clock.start("starting")
    for steps, passed in enumerate((2.0, 9.0, 0.5), 1):
        now += passed
        clock.step()
        now += 3.0  # a checkpoint
        clock.start("")
        assert clock.steps_per_second * clock.seconds["training"] <= steps
        clock.start("training")
    assert clock.steps_per_second == 2 / (3 + 9 + 3 + 0.5 + 3)


@cache
def composed(task: str, attention: str, data_dir: Path) -> Run:
    """One layer of two heads; everything that is not a size is the protocol's."""
    length = LENGTHS[task]
    words = [
        f"task={task}",
        f"attention={attention}",
        "task.source=tiny",
        f"data_dir={data_dir}",
        "compute=off",
        "model.n_layers=2",
        "model.d_model=16",
        "model.qkv_dim=16",
        "model.mlp_dim=16",
        f"protocol.data.max_length={length}",
        f"protocol.data.pad_to={length}",
        f"protocol.recipe.batch={1 if task == 'pathx' else 2}",
        "protocol.recipe.steps=2",
        "protocol.recipe.warmup=0",
    ]
    return compose(words)


def run_of(task: str, attention: str, data_dir: Path) -> Run:
    """Composing takes longer than training does here: every task and every attention once."""
    options = composed("listops", attention, data_dir).attention
    return replace(composed(task, "uniform", data_dir), attention=options)


@pytest.mark.parametrize(("task", "attention"), PAIRS)
def test_two_steps(task: str, attention: str, data_dir):
    run = run_of(task, attention, data_dir)
    length = run.protocol.data.max_length
    prepared = find_or_prepare(run.task, max_length=length, data_dir=data_dir)
    split = prepared.split("train")
    recipe = run.protocol.recipe
    network = build(run).network.train()
    optimizer = build_optimizer(network, recipe)
    schedule = build_schedule(optimizer, recipe)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    seen = 0
    for batch in Loader(split, recipe.batch, rules=run.protocol.data, steps=recipe.steps):
        seen += 1
        assert batch.ids.shape[-1] == length
        loss = F.cross_entropy(network(batch.ids, batch.mask), batch.labels)
        assert loss.isfinite()
        optimizer.zero_grad()
        loss.backward()
        for name, p in network.named_parameters():
            assert not p.requires_grad or p.grad is not None, name
            assert p.grad is None or p.grad.isfinite().all(), name
        optimizer.step()
        schedule.step()
        for module in network.modules():
            if isinstance(module, Attention):
                module.after_step()
    assert seen == recipe.steps
    frozen = [n for n, p in network.named_parameters() if p.requires_grad and p.equal(before[n])]
    assert not frozen
    # An attention that is skipped leaves a network which trains all the same.
    for name, p in network.encoder.blocks[0].attention.named_parameters():
        assert p.dim() == 1 or p.grad.abs().sum() > 0, name


class Tiny(nn.Module):
    """Attends twice per batch, as the dual encoder of Retrieval does."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 8)
        self.attention = luna.build("performer", n_heads=1, head_dim=8, max_len=4, m=4, redraw=2)

    def forward(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        x = self.embed(ids).unsqueeze(1)
        for _ in range(2):
            x = self.attention(x, x, x, mask)
        return x.mean((1, 2))


def asked(classes: int) -> SimpleNamespace:
    """What a module needs to know of a task."""
    return SimpleNamespace(target=Classes(classes), metric_names=["accuracy"])


def test_loss_and_accuracy_are_means_over_labels():
    """Batches with 3, 1 and 0 labels that are scored; class 2 is chosen for every token."""
    logits = torch.tensor([0.0, 0.0, 5.0])
    network = type(
        "Fixed", (nn.Module,), {"forward": lambda _, ids, mask: logits.expand(*ids.shape, 3)}
    )
    module = LRAModule(network(), None, asked(3))
    module._trainer = SimpleNamespace(testing=True, world_size=1)
    losses = []
    module.on_test_epoch_start()
    for labels in ([[2, -100], [2, 0]], [[-100, 1], [-100, -100]]):
        batch = Batch(torch.zeros(2, 2).long(), None, torch.tensor(labels))
        module.test_step(batch, 0)
        losses += [F.cross_entropy(logits, y) for y in batch.labels.flatten() if y >= 0]
    measured = module.evaluation.read()
    assert measured[1:] == (2, 4, 4)
    assert module.score_of(measured) == 50
    assert measured.loss == pytest.approx(float(sum(losses) / 4))
    answered = module.answers()
    assert (answered.answers.tolist(), answered.labels.tolist()) == ([2] * 4, [2, 2, 0, 1])


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize(("accumulate", "steps"), [(1, 6), (2, 3)])
def test_optimiser_steps_are_counted(accumulate: int, steps: int):
    recipe = Recipe(
        batch=2,
        steps=6,
        warmup=1,
        schedule=Schedule.constant,
        lr=0.1,
        betas=[0.9, 0.98],
        eps=1e-9,
        weight_decay=0.0,
        clip=Clip.none,
        clip_at=1.0,
    )
    network = Tiny()
    draws = []
    network.attention.redraw = lambda generator=None: draws.append(network.attention.age)
    batch = Batch(torch.ones(2, 4).long(), None, torch.zeros(2).long())
    loader = DataLoader([batch] * 6, batch_size=None)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=accumulate,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=1,
        log_every_n_steps=1,
    )
    trainer.fit(LRAModule(network, recipe, asked(8)), loader, loader)
    assert trainer.global_step == steps
    assert network.attention.age == steps
    assert draws == list(range(2, steps + 1))  # age is not reset by the stand-in


def test_a_checkpoint_holds_the_state_of_each_process(monkeypatch: pytest.MonkeyPatch):
    """One file holds it for all; the first one's sums in all of them would count it twice."""
    modules = []
    for rank in range(2):
        module = LRAModule(nn.Linear(1, 1), None, asked(2), seed=3)
        module._trainer = SimpleNamespace(world_size=2, global_rank=rank)  # type: ignore[assignment]
        module.meter.sums = torch.tensor([1.0, 2.0, 3.0, 3.0]) + rank
        modules.append(module)
    states: list[object] = []

    def gather(values: list[object], value: object) -> None:
        states.append(value)
        values[:] = states

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    checkpoint: dict[str, object] = {}
    draws = []
    for module in modules:
        module.on_train_start()
        module.on_save_checkpoint(checkpoint)
        draws.append(torch.rand(3))
    assert not torch.equal(*draws)  # a process has a seed of its own
    for module, draw in zip(modules, draws, strict=True):
        sums, module.meter.sums = module.meter.sums, None
        module.on_load_checkpoint(checkpoint)
        assert module.meter.sums is sums
        module.on_train_batch_start(None, 0)
        assert torch.equal(torch.rand(3), draw)
        module.on_train_batch_start(None, 1)  # restored once
        assert not torch.equal(torch.rand(3), draw)
