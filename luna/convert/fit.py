"""The attention maps of teacher and student, how well they match, and the report of stage 1."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from luna.convert import host
from luna.convert.batches import ModelInputs, forward
from luna.convert.losses import real_queries, row_cross_entropy, row_entropy, teacher_rows
from luna.convert.swap import described, evaluating, feature_maps

KL_WARNING = 0.25  # maps that stayed above rarely recovered in finetuning
DEAD_HEAD = 0.5  # a head with a larger part of dead rows counts as dead


@dataclass
class Fit:
    """How well the student's maps match: one number per layer and head."""

    kl: dict[str, list[float]] = field(default_factory=dict)  # mean KL(T | A) over real queries
    dead: dict[str, list[float]] = field(default_factory=dict)  # part of rows that sum to 0

    def layers(self) -> dict[str, float]:
        return {layer: sum(heads) / len(heads) for layer, heads in self.kl.items()}

    def mean(self) -> float:
        each = self.layers().values()
        return sum(each) / len(each) if each else math.nan

    def dead_heads(self) -> list[str]:
        return [
            f"{layer} head {h}"
            for layer, heads in self.dead.items()
            for h, fraction in enumerate(heads)
            if fraction > DEAD_HEAD
        ]


@dataclass
class Distilled:
    """The report of stage 1."""

    method: str
    loss: str
    lr: float
    steps: int
    before: Fit
    after: Fit
    curve: list[dict[str, Any]]  # step, mean KL of each layer on the held-out batches
    losses: list[float]
    redrawn: list[dict[str, Any]]  # layer and head of feature maps drawn again, and the step
    seconds: float

    @property
    def warnings(self) -> list[str]:
        dead = [f"{head} is dead: its features are 0" for head in self.after.dead_heads()]
        return dead + [
            f"{layer}: KL {kl:.2f} after stage 1 is above {KL_WARNING}"
            for layer, kl in self.after.layers().items()
            if kl > KL_WARNING
        ]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"warnings": self.warnings}


class AttentionMaps(NamedTuple):
    """One matrix (B, H, n, n) per layer."""

    teacher: list[Tensor]
    student: list[Tensor]


@torch.no_grad()
def attention_maps(model: nn.Module, batch: ModelInputs) -> AttentionMaps:
    """The maps of the softmax teacher and of the student, each from a forward in eval mode."""
    described(model)
    maps = AttentionMaps([], [])

    def teacher(module: nn.Module, q, k, v, mask, x):
        T = teacher_rows(module, q, k, mask)
        maps.teacher.append(T)
        return T.to(v.dtype) @ v, None

    def student(module: nn.Module, q, k, v, mask, x):
        out, A = host.attend(module, q, k, v, mask, x, weights=True)
        maps.student.append(A)  # type: ignore[arg-type]
        return out, None

    with evaluating(model):
        for probe in (teacher, student):
            with host.probing(model, probe):
                forward(model, batch)
    return maps


@torch.no_grad()
def measure(student: nn.Module, batches: Iterable[ModelInputs]) -> Fit:
    """KL and dead rows of every layer and head, as means over the real queries of all batches."""
    kl: dict[str, Tensor] = {}
    dead: dict[str, Tensor] = {}
    rows: dict[str, Tensor] = {}
    names = {module: name for name, module in host.converted_layers(student).items()}
    maps = feature_maps(student)

    def probe(module: nn.Module, q, k, v, mask, x):
        name = names[module]
        T = teacher_rows(module, q, k, mask)
        attention = maps.get(name)
        if attention is not None and attention.has_matrix:
            A = attention.matrix(q, k, mask, x)
            real = real_queries(q, mask)  # (B, 1, n)
            excess = (row_cross_entropy(T, A) - row_entropy(T)) * real
            # Rows of a row-stochastic method sum to 1, or to 0 where the denominator was clamped.
            least = 0.5 if attention.row_stochastic else 1e-6
            gone = (A.abs().sum(-1) < least) * real
            kl[name] = kl.get(name, 0) + excess.sum((0, 2)).double()
            dead[name] = dead.get(name, 0) + gone.sum((0, 2)).double()
            rows[name] = rows.get(name, 0) + real.sum().double()
        return T.to(v.dtype) @ v, None

    with evaluating(student), host.probing(student, probe):
        for batch in batches:
            forward(student, batch)
    return Fit(
        {name: (kl[name] / n).tolist() for name, n in rows.items()},
        {name: (dead[name] / n).tolist() for name, n in rows.items()},
    )
