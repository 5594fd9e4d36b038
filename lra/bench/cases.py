"""The cases that several benchmarks share: an attention alone, and a whole training step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import luna
from lra import data, model
from lra.base.config import Clip, Mask, UserError
from lra.bench.worker import BenchCase, BenchMeter
from lra.compute.count import slot_flops
from lra.settings.compose import Run, compose
from lra.training import optim


def methods_of(words: Iterable[str]) -> list[dict[str, Any]]:
    """Every `name` or `name@profile` once, as fields of a case: name, facts, method, profile."""
    found = [_method_of(word) for word in words]
    return list({method["name"]: method for method in found}.values())


def _method_of(word: str) -> dict[str, Any]:
    name, _, profile = word.partition("@")
    cls, profile = luna.get(name), profile or "strict"
    if cls.effective_profile(profile) != profile:
        raise UserError(
            f"attention '{name}' is the same under profile '{profile}'; choose from its profiles, "
            f"{', '.join(cls.profiles)}"
        )
    case = name if profile == "strict" else f"{name} ({profile})"
    facts = {"attention": name, "profile": profile}
    return {"name": case, "facts": facts, "method": name, "profile": profile}


@dataclass(frozen=True, kw_only=True)
class AttentionCase(BenchCase):
    """An attention without a mask: forward and backward, and forward without gradients."""

    method: str
    profile: str = "strict"
    options: dict[str, Any] = field(default_factory=dict)
    batch: int
    heads: int
    head_dim: int
    value_dim: int | None = None  # width of the values, if it is not head_dim

    def flops(self, n: int) -> int:
        slot = self.build(n, torch.device("meta"))
        return self.batch * slot_flops(slot, value_dim=self.value_dim)

    def costs(self, n: int, meter: BenchMeter) -> dict[str, float]:
        attention = self.build(n, meter.device)
        q, k, v, x = self.inputs(n, meter.device)
        train = training_pass(attention, [q, k, v], partial(attention, q, k, v, None, x))
        attention.train()
        costs = meter.seconds({"train_seconds": train}) | meter.peak_bytes(train)
        attention.eval()
        forward = torch.no_grad()(partial(attention, q, k, v, None, x))
        return costs | meter.seconds({"forward_seconds": forward})

    def build(self, n: int, device: torch.device) -> luna.Attention:
        torch.manual_seed(0)
        slot: dict[str, Any] = {"n_heads": self.heads, "head_dim": self.head_dim, "max_len": n}
        with device:
            return luna.build(self.method, profile=self.profile, **slot, **self.options)

    def inputs(self, n: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        widths = (self.head_dim, self.head_dim, self.value_dim or self.head_dim)
        q, k, v = (
            torch.randn(self.batch, self.heads, n, width, device=device, requires_grad=True)
            for width in widths
        )
        return q, k, v, torch.randn(self.batch, n, self.heads * self.head_dim, device=device)


def training_pass(
    module: nn.Module, inputs: Sequence[Tensor], forward: Callable[[], Tensor]
) -> Callable[[], None]:
    """A call of forward and backward with a random gradient; inputs are (q, k, v)."""
    leaves = [*inputs, *module.parameters()]
    gradient = torch.randn_like(inputs[-1])

    def call() -> None:
        forward().backward(gradient)
        for leaf in leaves:  # after the call, so that the next one frees no gradients
            leaf.grad = None

    return call


@dataclass(frozen=True, kw_only=True)
class StepCase(BenchCase):
    """A training step of a run: network, optimiser and clipping, on a batch of random ids at full
    length, so that no data have to be prepared."""

    words: Sequence[str]  # as for lra train

    def costs(self, n: int, meter: BenchMeter) -> dict[str, float]:
        run = compose(self.words)
        call = partial(TrainingStep(run, meter.device), *random_batch(run, meter.device))
        return meter.seconds({"seconds": call}) | meter.peak_bytes(call)


CLIP: dict[Clip, Callable[..., Any]] = {
    Clip.norm: nn.utils.clip_grad_norm_,
    Clip.value: nn.utils.clip_grad_value_,
}


class TrainingStep:
    """A training step without the framework around it."""

    def __init__(self, run: Run, device: torch.device):
        torch.manual_seed(run.seed)
        self.recipe = run.protocol.recipe
        task = data.of(run.task)
        network = model.build(task, run.attention, run.model, run.protocol, seed=run.seed)
        self.network = network.to(device)
        self.optimizer, self.scheduler = optim.build_optimizer(network.parameters(), self.recipe)

    def __call__(self, ids: Tensor, mask: Tensor | None, labels: Tensor) -> None:
        for _ in self.parts(ids, mask, labels):
            pass

    def parts(self, ids: Tensor, mask: Tensor | None, labels: Tensor) -> Iterator[str]:
        """The same step; each part's name when it has been done."""
        loss = F.cross_entropy(self.network(ids, mask).flatten(0, -2), labels.flatten())
        yield "forward"
        loss.backward()
        yield "backward"
        if clip := CLIP.get(self.recipe.clip):
            clip(self.network.parameters(), self.recipe.clip_at)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        yield "optimiser"


def random_batch(run: Run, device: torch.device) -> tuple[Tensor, Tensor | None, Tensor]:
    """(ids, mask, labels) of texts at full length, (batch, n) or in pairs (batch, 2, n)."""
    task, rules, batch = data.of(run.task), run.protocol.data, run.protocol.recipe.batch
    texts = (2,) if task.dual else ()
    shape = (batch, *texts, rules.pad_to)
    ids = torch.randint(1, task.vocab, shape, device=device)
    masked = rules.mask is not Mask.none
    mask = torch.ones(shape, dtype=torch.bool, device=device) if masked else None
    labels = (batch, rules.pad_to // task.stack) if task.per_token else (batch,)
    return ids, mask, torch.randint(task.classes, labels, device=device)
