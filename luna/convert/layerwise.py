"""Losses on the attention maps inside the layers: stage 1's gradients, a term of stage 2's loss.

In stage 1 student and teacher share everything but the feature maps, so one forward of one model
serves both. Each layer computes T = softmax(q k^T / sqrt(d)) and hands T v on, so that the next
layer sees the teacher's hidden states (teacher-forced, as in HazyResearch/lolcats). The student's
matrix A is computed from the detached q and k, and its loss (Hedgehog's cross-entropy) is
differentiated at once: layers are independent problems, and one layer's graph is alive at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from luna.convert import host
from luna.convert.batches import ModelInputs, forward
from luna.convert.losses import real_queries, row_cross_entropy, teacher_rows
from luna.convert.swap import evaluating, feature_maps, feature_parameters

MSE_SCALE = 1000.0  # as in HazyResearch/lolcats

LossOf = Callable[[nn.Module, ModelInputs], Tensor]


class Layerwise:
    """The loss of one batch on all attention maps of a student, and its gradients."""

    def __init__(self, student: nn.Module, loss: str):
        self.student, self.loss = student, loss
        maps = feature_maps(student)
        self.maps = {m: maps.get(n) for n, m in host.converted_layers(student).items()}
        self.n_maps = len(maps)
        self.total: Tensor | float = 0.0

    @torch.no_grad()
    def backward(self, batch: ModelInputs) -> float:
        """Add d loss / d phi to the gradients; return the loss, the mean over layers."""
        self.total = 0.0
        trainable = feature_parameters(self.student).values()
        with (
            evaluating(self.student),
            only_trainable(self.student, trainable),
            host.probing(self.student, self.teacher_forced),
        ):
            forward(self.student, batch)
        return float(self.total)

    def teacher_forced(self, module: nn.Module, q, k, v, mask, x):
        T = teacher_rows(module, q, k, mask)
        out = T.to(v.dtype) @ v
        if self.maps[module] is not None:  # else a layer that stayed softmax
            with torch.enable_grad():
                loss = self._loss(module, q, k, v, mask, x, T, out)
                loss.backward()
            self.total += loss.detach()
        return out, None

    def beside(self, loss: LossOf, weight: float) -> LossOf:
        """`loss` plus `weight` times the loss of the maps, so that phi follows softmax while the
        task moves q and k. These are detached: when the second loss moved them too, both maps
        became sharper and the KL grew."""
        losses: list[Tensor] = []

        def probe(module: nn.Module, q, k, v, mask, x):
            if self.maps[module] is not None:
                q_, k_, v_ = q.detach(), k.detach(), v.detach()
                x_ = None if x is None else x.detach()
                T = teacher_rows(module, q_, k_, mask)
                losses.append(self._loss(module, q_, k_, v_, mask, x_, T, T.to(v.dtype) @ v_))
            return host.attend(module, q, k, v, mask, x)

        def joint(model: nn.Module, batch: ModelInputs) -> Tensor:
            losses.clear()
            with host.probing(model, probe):
                task_loss = loss(model, batch)
            return task_loss + weight * torch.stack(losses).sum()

        return joint

    def _loss(self, module: nn.Module, q, k, v, mask, x, T: Tensor, target: Tensor) -> Tensor:
        """The mean over examples, heads, real queries and layers, as far as this layer adds."""
        attention = self.maps[module]
        assert attention is not None
        loss = torch.zeros((), device=q.device)
        if self.loss != "mse":
            loss = loss + row_cross_entropy(T, attention.matrix(q, k, mask, x))
        if self.loss != "ce":
            error = attention(q, k, v, mask, x).float() - target.float()
            loss = loss + MSE_SCALE * error.square().mean(-1)
        real = real_queries(q, mask)
        return (loss * real).sum() / (real.sum() * q.shape[1] * self.n_maps)


@contextlib.contextmanager
def only_trainable(model: nn.Module, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Inside, requires_grad is True for `parameters` alone; it is restored afterwards."""
    ids = {id(p) for p in parameters}
    before = [(p, p.requires_grad) for p in model.parameters()]
    for p, _ in before:
        p.requires_grad_(id(p) in ids)
    try:
        yield
    finally:
        for p, flag in before:
            p.requires_grad_(flag)
