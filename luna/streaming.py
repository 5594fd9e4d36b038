"""Causal attention as one function of a state and the tokens after it: in parallel from no state,
streamed with one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from luna.base import Attention, LunaError, Mask, zero_padding
from luna.kernels.checked import on_gpu


class StreamingAttention(Attention):
    """A subclass implements `causal_from`, and `cross` for the bidirectional form. Its states are
    tuples that begin with a tensor (B, H, ., e)."""

    declared = Attention.declared.but(
        causal_form=True,
    )
    chunk: int = 128

    def causal_from(
        self, state: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask
    ) -> tuple[Any, Tensor]:
        """The state after n tokens that follow `state` (None: the first ones), and their outputs
        (B, H, n, e). A method that declares `needs_x` takes the hidden states as `x`, too."""
        raise NotImplementedError(f"{type(self).__name__} must implement causal_from()")

    def is_fused(self, device: str) -> bool:
        """Say whether fused kernels compute attend() on a type of device: they give 0 at padding
        and, on a GPU, read half precision."""
        return False

    def evaluation(self, device: str) -> str | None:
        return "fused" if self.is_fused(device) else None

    def zeroes_padding(self, q: Tensor) -> bool:
        return self.is_fused(q.device.type)

    def reads_half(self, q: Tensor) -> bool:
        return on_gpu(q.device.type) and self.is_fused(q.device.type)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        if self.causal:
            hidden = {"x": x} if self.traits().needs_x else {}
            return self.causal_from(None, q, k, v, mask, **hidden)[1]
        return self.cross(q, k, v, mask)

    def steps(
        self,
        state: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask = None,
        x: Tensor | None = None,
    ) -> tuple[Any, Tensor]:
        if not self.causal:
            return super().steps(state, q, k, v, mask, x)  # which says why it is refused
        if state is not None and mask is not None and not bool(mask.all()):
            raise LunaError(
                f"attention '{self.name}' cannot stream padding after a state: give real tokens "
                "alone"
            )
        dtype = v.dtype
        q, k, v, x = self._enter(q, k, v, mask, x)
        theirs = (*q.shape[:2], v.shape[3])
        if state is not None and (*state[0].shape[:2], state[0].shape[3]) != theirs:
            raise LunaError(
                f"this state does not belong to these tokens: it begins with a tensor of shape "
                f"{tuple(state[0].shape)}, theirs is of (B, H, e) = {theirs}; start a sequence "
                "with state=None"
            )
        hidden = {"x": x} if self.traits().needs_x else {}
        with self._precision(q.device):
            state, out = self.causal_from(state, q, k, v, mask, **hidden)
        return state, (zero_padding(out, mask) if self.profile == "strict" else out).to(dtype)


def tokens_seen(state_t: Tensor | None, q: Tensor, mask: Mask) -> Tensor:
    """The number of real tokens up to each one, (B, 1, n), with those before the first."""
    real = torch.ones_like(q[:, 0, :, 0]) if mask is None else mask.to(q.dtype)
    t = real.cumsum(-1).unsqueeze(1)
    return t if state_t is None else t + state_t
