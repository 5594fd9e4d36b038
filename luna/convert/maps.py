"""Attention maps of teacher and student: the losses between them, gradients, and how well they fit.

Student and teacher share everything but the feature maps, so one forward of one model serves both.
In stage 1 each layer computes T = softmax(q k^T / sqrt(d)) and hands T v on, so that the next layer
sees the teacher's hidden states (teacher-forced, as in HazyResearch/lolcats). The student's matrix
A is computed from the detached q and k, and its loss (Hedgehog's cross-entropy of rows) is
differentiated at once: layers are independent problems, and one layer's graph is alive at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from luna.base import autocast_off
from luna.convert.host import ConvertedLayer, Given, converted_layers, probing
from luna.convert.running import ModelInputs, evaluating, forward
from luna.convert.swap import described, feature_maps

FLOOR = 1e-8  # relu features give exact zeros: a row's loss is at most -log(1e-8) = 18.42
MSE_SCALE = 1000.0  # as in HazyResearch/lolcats
DEAD_HEAD = 0.5  # a head with a larger part of dead rows counts as dead

LossOf = Callable[[nn.Module, ModelInputs], Tensor]


def softmax_rows(
    q: Tensor, k: Tensor, mask: Tensor | None = None, *, causal: bool = False
) -> Tensor:
    """Compute the teacher's matrix T (B, H, n, n): softmax of q k^T / sqrt(d) over real (and, if
    causal, no later) keys; 0 in rows that see no key."""
    hidden = torch.zeros(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
    if causal:
        hidden = hidden | torch.ones_like(hidden).triu(1)
    if mask is not None:
        hidden = hidden | ~mask[:, None, None, :]
    with autocast_off(q.device):
        q, k = _full(q), _full(k)
        scores = (q @ k.mT) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        return scores.softmax(-1).masked_fill(hidden, 0)


def row_cross_entropy(teacher: Tensor, student: Tensor, *, floor: float = FLOOR) -> Tensor:
    """-sum_j T_ij log max(A_ij, floor) of every row: T, A (B, H, n, n) -> (B, H, n)."""
    with autocast_off(teacher.device):
        return -(_full(teacher) * _full(student).clamp_min(floor).log()).sum(-1)


def row_entropy(teacher: Tensor) -> Tensor:
    """-sum_j T_ij log T_ij (B, H, n), with 0 log 0 = 0: the lower bound of the cross-entropy. Their
    difference is the KL divergence."""
    with autocast_off(teacher.device):
        return torch.special.entr(_full(teacher)).sum(-1)


def attention_cross_entropy(
    teacher: Tensor, student: Tensor, mask: Tensor | None = None, *, floor: float = FLOOR
) -> Tensor:
    """Average over all heads and real queries, whatever the length of their examples."""
    return _mean(row_cross_entropy(teacher, student, floor=floor), mask)


def _mean(rows: Tensor, mask: Tensor | None, *, parts: int = 1) -> Tensor:
    """The mean over real queries of rows (B, H, n), divided by the number of layers."""
    real = _real_queries(rows, mask)
    return (rows * real).sum() / (real.sum().clamp_min(1) * rows.shape[1] * parts)


def _real_queries(rows: Tensor, mask: Tensor | None) -> Tensor:
    """1.0 at real queries, 0.0 at padded ones: (B, 1, n)."""
    if mask is None:
        return rows.new_ones(rows.shape[0], 1, rows.shape[2], dtype=torch.float32)
    return mask[:, None, :].float()


def _full(t: Tensor) -> Tensor:
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


def _teacher(layer: ConvertedLayer, given: Given) -> tuple[Tensor, Tensor]:
    """The matrix T and the output T v of the softmax attention that this layer replaces."""
    T = softmax_rows(given.q, given.k, given.mask, causal=layer.attention.causal)
    return T, T.to(given.v.dtype) @ given.v


class MapLoss:
    """The loss of one batch on all attention maps of a student: ce (rows of the maps), mse (1000 x
    squared error of the outputs) or both, the mean over examples, heads, real queries, layers."""

    def __init__(self, student: nn.Module, kind: str):
        self.student, self.kind = student, kind
        maps = feature_maps(student)
        layers = converted_layers(student)
        self.trained = {layer for name, layer in layers.items() if name in maps}

    @torch.no_grad()
    def backward(self, batch: ModelInputs) -> float:
        """Add the gradients of the feature maps, and of nothing else; return the loss."""
        total: Tensor | float = 0.0

        def teacher_forced(layer: ConvertedLayer, given: Given) -> tuple[Tensor, None]:
            nonlocal total
            T, out = _teacher(layer, given)
            if layer in self.trained:  # else it stayed softmax
                with torch.enable_grad():
                    loss = self._of_layer(layer, given, T, out)
                    loss.backward()
                total += loss.detach()
            return out, None

        with evaluating(self.student), probing(self.student, teacher_forced):
            forward(self.student, batch)
        return float(total)

    def beside(self, loss: LossOf, weight: float) -> LossOf:
        """`loss` plus `weight` times the loss of the maps, so that phi follows softmax while the
        model learns the task. Both are computed on the student's own queries and keys."""

        def joint(model: nn.Module, batch: ModelInputs) -> Tensor:
            losses: list[Tensor] = []

            def probe(layer: ConvertedLayer, given: Given) -> tuple[Tensor, Tensor | None]:
                if layer in self.trained:
                    fixed = given.detached()
                    losses.append(self._of_layer(layer, fixed, *_teacher(layer, fixed)))
                return layer.attend(given)

            with probing(model, probe):
                task_loss = loss(model, batch)
            return task_loss + weight * torch.stack(losses).sum()

        return joint

    def _of_layer(self, layer: ConvertedLayer, given: Given, T: Tensor, out: Tensor) -> Tensor:
        q, k, _, mask, x = given
        loss = torch.zeros((), device=q.device)
        if self.kind != "mse":
            loss = loss + row_cross_entropy(T, layer.attention.matrix(q, k, mask, x))
        if self.kind != "ce":
            error = layer.attention(*given).float() - out.float()
            loss = loss + MSE_SCALE * error.square().mean(-1)
        return _mean(loss, mask, parts=len(self.trained))


# ---------------------------------------------------------------------- measurements


class AttentionMaps(NamedTuple):
    """One matrix (B, H, n, n) per layer."""

    teacher: list[Tensor]
    student: list[Tensor]


@torch.no_grad()
def attention_maps(model: nn.Module, batch: ModelInputs) -> AttentionMaps:
    """Compute the attention maps of the softmax teacher and of the student, each in a forward of
    its own in eval mode.

    model    a converted one
    batch    the model's keywords, or a tensor
    returns  of each layer the teacher's map and the student's
    """
    described(model)
    maps = AttentionMaps([], [])

    def teacher(layer: ConvertedLayer, given: Given) -> tuple[Tensor, None]:
        T, out = _teacher(layer, given)
        maps.teacher.append(T)
        return out, None

    def student(layer: ConvertedLayer, given: Given) -> tuple[Tensor, None]:
        out, A = layer.attend(given, weights=True)
        maps.student.append(A)  # type: ignore[arg-type]
        return out, None

    with evaluating(model):
        for probe in (teacher, student):
            with probing(model, probe):
                forward(model, batch)
    return maps


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

    def dead_heads(self) -> dict[str, list[int]]:
        return {
            layer: [h for h, fraction in enumerate(heads) if fraction > DEAD_HEAD]
            for layer, heads in self.dead.items()
        }


@torch.no_grad()
def measure(student: nn.Module, batches: Iterable[ModelInputs]) -> Fit:
    """Measure KL and dead rows as means over the real queries of all batches, teacher-forced."""
    sums: dict[str, Tensor] = {}  # (3, H): KL, dead rows, rows
    names = {layer: name for name, layer in converted_layers(student).items()}
    maps = feature_maps(student)

    def probe(layer: ConvertedLayer, given: Given) -> tuple[Tensor, None]:
        name, attention = names[layer], layer.attention
        q, k, _, mask, x = given
        T, out = _teacher(layer, given)
        if name in maps and attention.traits().has_matrix:
            A = attention.matrix(q, k, mask, x)
            real = _real_queries(q[..., 0], mask)
            excess = (row_cross_entropy(T, A) - row_entropy(T)) * real
            # Rows of a row-stochastic method sum to 1, or to 0 where the denominator was clamped.
            least = 0.5 if attention.traits().row_stochastic else 1e-6
            gone = (A.abs().sum(-1) < least) * real
            parts = [t.expand_as(excess).sum((0, 2)).double() for t in (excess, gone, real)]
            sums[name] = sums.get(name, 0) + torch.stack(parts)
        return out, None

    with evaluating(student), probing(student, probe):
        for batch in batches:
            forward(student, batch)
    return Fit(
        {name: (kl / rows).tolist() for name, (kl, _, rows) in sums.items()},
        {name: (dead / rows).tolist() for name, (_, dead, rows) in sums.items()},
    )
