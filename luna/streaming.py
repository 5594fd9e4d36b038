"""Causal attentions that are one function of a state and the tokens after it: in parallel from no
state, streamed with one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from luna.base import Attention, LunaError, zero_padding


class StreamingAttention(Attention, ABC):
    """Its states are tuples that begin with S (B, H, ., e)."""

    causal_form = True
    chunk = 128

    @abstractmethod
    def causal_from(
        self, state: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
    ) -> tuple[Any, Tensor]:
        """The state after n tokens that follow `state` (None: the first ones), and their outputs
        (B, H, n, e)."""

    @abstractmethod
    def attend_all(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """The bidirectional form."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, x: Tensor | None
    ) -> Tensor:
        if self.causal:
            return self.causal_from(None, q, k, v, mask)[1]
        return self.attend_all(q, k, v, mask)

    def step(self, state: Any, q_t: Tensor, k_t: Tensor, v_t: Tensor) -> tuple[Any, Tensor]:
        if not self.causal:
            return super().step(state, q_t, k_t, v_t)
        state, out = self.steps(state, *(t.unsqueeze(2) for t in (q_t, k_t, v_t)))
        return state, out.squeeze(2)

    def steps(
        self, state: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
    ) -> tuple[Any, Tensor]:
        padded = mask is not None and not bool(mask.all())
        if not self.causal or (state is not None and padded):
            return super().steps(state, q, k, v, mask)  # which says why it is refused
        dtype = v.dtype
        q, k, v = self._enter(q, k, v, mask)
        theirs = (*q.shape[:2], v.shape[3])
        if state is not None and (*state[0].shape[:2], state[0].shape[3]) != theirs:
            raise LunaError(
                f"this state does not belong to these tokens: its S is {tuple(state[0].shape)}, "
                f"theirs is of (B, H, e) = {theirs}; start a sequence with state=None"
            )
        with self._precision(q):
            state, out = self.causal_from(state, q, k, v, mask)
        return state, zero_padding(out, mask).to(dtype)


def tokens_seen(state_t: Tensor | None, q: Tensor, mask: Tensor | None) -> Tensor:
    """The number of real tokens up to each one, (B, 1, n), with those before the first."""
    real = torch.ones_like(q[:, 0, :, 0]) if mask is None else mask.to(q.dtype)
    t = real.cumsum(-1).unsqueeze(1)
    return t if state_t is None else t + state_t
