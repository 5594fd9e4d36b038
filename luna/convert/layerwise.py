"""The losses on maps inside the layers: stage 1's gradients, and a term for stage 2's loss.

In stage 1 the backbone is the teacher, so one forward of one model serves both. Inside each layer:
T = softmax(q k^T / sqrt(d)) is computed and T v handed on, so that the next layer sees the
teacher's hidden states (teacher-forced, as in HazyResearch/lolcats); the student's matrix A is
computed from the detached q, k, and its loss (Hedgehog's cross-entropy) is differentiated there and
then. Layers are independent problems and one layer's graph is alive at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from luna.base import Attention
from luna.convert import host
from luna.convert.batches import Batch, forward
from luna.convert.fit import Inputs, real_queries
from luna.convert.losses import row_cross_entropy, softmax_rows
from luna.convert.swap import evaluating, feature_maps, feature_parameters

MSE_SCALE = 1000.0  # of HazyResearch/lolcats

Loss = Literal["ce", "mse", "both"]
LossOf = Callable[[nn.Module, Batch], Tensor]


class Layerwise:
    """One batch forward, and the gradients of the feature maps with it."""

    def __init__(
        self,
        student: nn.Module,
        loss: Loss,
        inputs: Inputs,
        chunk: int | None = None,
        recompute: bool = False,
    ):
        self.student, self.loss, self.inputs = student, loss, inputs
        self.chunk, self.recompute = chunk, recompute
        self.maps = feature_maps(student)
        self.layers = {id(m): n for n, m in host.converted_layers(student).items()}
        self.parameters = feature_parameters(student)
        self.pending: list[Tensor] = []
        self.total = 0.0

    def backward(self, batch: Batch) -> float:
        """Adds d loss / d phi to the gradients; the mean over layers of their losses."""
        self.total, self.pending = 0.0, []
        forced = self.inputs == "teacher"
        with (
            evaluating(self.student),
            only_trainable(self.student, self.parameters),
            host.probing(self.student, self.teacher_forced if forced else self.student_run),
            torch.set_grad_enabled(not forced),
        ):
            forward(self.student, batch)
        if self.pending:
            torch.stack(self.pending).sum().backward()
        return float(self.total)

    def beside(self, loss: LossOf, weight: float) -> LossOf:
        """`loss` of a batch plus `weight` times that of the maps: phi follows softmax of q and k
        while the task moves these. They are detached: where the loss could move them too, it made
        both maps sharper and the KL grew."""

        def follow(module: nn.Module, q, k, v, mask, x):
            self._meet(module, *(None if t is None else t.detach() for t in (q, k, v, mask, x)))
            return host.attend(module, q, k, v, mask, x)

        def joint(model: nn.Module, batch: Batch) -> Tensor:
            self.total, self.pending = 0.0, []
            with host.probing(model, follow):
                own = loss(model, batch)
            return own + weight * torch.stack(self.pending).sum()

        return joint

    def teacher_forced(self, module: nn.Module, q, k, v, mask, x):
        attention = self.maps.get(self.layers[id(module)])
        count = real_queries(q, mask).sum() * q.shape[1] * len(self.maps)
        outputs = []
        size = self.chunk or len(q)
        for start in range(0, len(q), size):
            part = slice(start, start + size)
            q_, k_, v_ = q[part].detach(), k[part].detach(), v[part].detach()
            mask_, x_ = (None if t is None else t[part] for t in (mask, x))
            T = softmax_rows(q_, k_, mask_)
            outputs.append(T.to(v.dtype) @ v_)
            if attention is None:  # a layer left as softmax
                continue
            with torch.enable_grad():
                loss = self._sum(attention, q_, k_, v_, mask_, x_, T, outputs[-1]) / count
                loss.backward()
            self.total += loss.detach()
        return torch.cat(outputs), None

    def student_run(self, module: nn.Module, q, k, v, mask, x):
        self._meet(module, q, k, v, mask, x)
        return host.attend(module, q, k, v, mask, x)

    def _meet(self, module: nn.Module, q, k, v, mask, x) -> None:
        """Keeps the layer's loss for later."""
        attention = self.maps.get(self.layers[id(module)])
        if attention is None:  # a layer left as softmax
            return
        with torch.no_grad():
            T = softmax_rows(q, k, mask)
            target = T.to(v.dtype) @ v
        count = real_queries(q, mask).sum() * q.shape[1] * len(self.maps)
        loss = self._sum(attention, q, k, v, mask, x, T, target) / count
        self.pending.append(loss)
        self.total += loss.detach()

    def _sum(self, attention: Attention, q, k, v, mask, x, T: Tensor, target: Tensor) -> Tensor:
        """The loss, summed over examples, heads and real queries."""

        def rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            loss = torch.zeros((), device=q.device)
            if self.loss != "mse":
                loss = loss + row_cross_entropy(T, attention.matrix(q, k, mask, x))
            if self.loss != "ce":
                error = attention(q, k, v, mask, x).float() - target.float()
                loss = loss + MSE_SCALE * error.square().mean(-1)
            return (loss * real_queries(q, mask)).sum()

        return checkpoint(rows, q, k, v, use_reentrant=False) if self.recompute else rows(q, k, v)


@contextlib.contextmanager
def only_trainable(model: nn.Module, parameters: dict[str, nn.Parameter]) -> Iterator[None]:
    """requires_grad for the feature maps alone, as it was afterwards."""
    chosen = {id(p) for p in parameters.values()}
    before = [(p, p.requires_grad) for p in model.parameters()]
    for p, _ in before:
        p.requires_grad_(id(p) in chosen)
    try:
        yield
    finally:
        for p, flag in before:
            p.requires_grad_(flag)
