"""Losses on the attention maps inside the layers: stage 1's gradients, a term of stage 2's loss.

In stage 1 student and teacher share everything but the feature maps, so one forward of one model
serves both. Each layer computes T = softmax(q k^T / sqrt(d)) and hands T v on, so that the next
layer sees the teacher's hidden states (teacher-forced, as in HazyResearch/lolcats). The student's
matrix A is computed from the detached q and k, and its loss (Hedgehog's cross-entropy) is
differentiated at once: layers are independent problems, and one layer's graph is alive at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from luna.convert import host
from luna.convert.batches import ModelInputs, forward
from luna.convert.losses import real_queries, row_cross_entropy, teacher_rows
from luna.convert.swap import evaluating, feature_maps, feature_parameters

MSE_SCALE = 1000.0  # as in HazyResearch/lolcats

LossOf = Callable[[nn.Module, ModelInputs], Tensor]


class Layerwise:
    """The loss of one batch on all attention maps of a student, and its gradients."""

    def __init__(
        self,
        student: nn.Module,
        loss: str,
        inputs: str,
        chunk: int | None = None,
        recompute: bool = False,
    ):
        self.student, self.loss, self.inputs = student, loss, inputs
        self.chunk, self.recompute = chunk, recompute
        maps = feature_maps(student)
        self.maps = {m: maps.get(n) for n, m in host.converted_layers(student).items()}
        self.n_maps = len(maps)
        self.parameters = feature_parameters(student)
        self.pending: list[Tensor] = []  # losses that the caller differentiates
        self.total: Tensor | float = 0.0

    def backward(self, batch: ModelInputs) -> float:
        """Add d loss / d phi to the gradients; return the loss, the mean over layers."""
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
        """`loss` plus `weight` times the loss of the maps, so that phi follows softmax while the
        task moves q and k. These are detached: when the second loss moved them too, both maps
        became sharper and the KL grew."""

        def probe(module: nn.Module, q, k, v, mask, x):
            inputs = [None if t is None else t.detach() for t in (q, k, v, mask, x)]
            self._keep_loss(module, *inputs)
            return host.attend(module, q, k, v, mask, x)

        def joint(model: nn.Module, batch: ModelInputs) -> Tensor:
            self.total, self.pending = 0.0, []
            with host.probing(model, probe):
                task_loss = loss(model, batch)
            return task_loss + weight * torch.stack(self.pending).sum()

        return joint

    def teacher_forced(self, module: nn.Module, q, k, v, mask, x):
        count = self._count(q, mask)
        outputs = []
        size = self.chunk or len(q)
        for start in range(0, len(q), size):
            part = slice(start, start + size)
            q_, k_, v_ = q[part].detach(), k[part].detach(), v[part].detach()
            mask_, x_ = (None if t is None else t[part] for t in (mask, x))
            T = teacher_rows(module, q_, k_, mask_)
            outputs.append(T.to(v.dtype) @ v_)
            if self.maps[module] is None:  # a layer that stayed softmax
                continue
            with torch.enable_grad():
                loss = self._sum(module, q_, k_, v_, mask_, x_, T, outputs[-1]) / count
                loss.backward()
            self.total += loss.detach()
        return torch.cat(outputs), None

    def student_run(self, module: nn.Module, q, k, v, mask, x):
        self._keep_loss(module, q, k, v, mask, x)
        return host.attend(module, q, k, v, mask, x)

    def _keep_loss(self, module: nn.Module, q, k, v, mask, x) -> None:
        if self.maps[module] is None:  # a layer that stayed softmax
            return
        with torch.no_grad():
            T = teacher_rows(module, q, k, mask)
            target = T.to(v.dtype) @ v
        loss = self._sum(module, q, k, v, mask, x, T, target) / self._count(q, mask)
        self.pending.append(loss)
        self.total += loss.detach()

    def _count(self, q: Tensor, mask: Tensor | None) -> Tensor:
        """Real queries x heads x layers: what the summed loss is divided by."""
        return real_queries(q, mask).sum() * q.shape[1] * self.n_maps

    def _sum(self, module: nn.Module, q, k, v, mask, x, T: Tensor, target: Tensor) -> Tensor:
        """The loss, summed over examples, heads and real queries."""
        attention = self.maps[module]
        assert attention is not None

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
    """Inside, requires_grad is True for `parameters` alone; it is restored afterwards."""
    ids = {id(p) for p in parameters.values()}
    before = [(p, p.requires_grad) for p in model.parameters()]
    for p, _ in before:
        p.requires_grad_(id(p) in ids)
    try:
        yield
    finally:
        for p, flag in before:
            p.requires_grad_(flag)
