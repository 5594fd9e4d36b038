"""Decoding with a state in place of the cache of keys and values.

transformers hands a `DynamicCache` from layer to layer. In a converted decoder each of its layers
is replaced, before it has seen a token, by one that holds the attention's state: for linear
attention D (e + 1) numbers per head, however long the text. `generate` needs no change.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer

from luna.base import Attention, LunaError


class StateLayer(CacheLayerMixin):
    """What one layer keeps of the tokens that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.state: Any = None
        self.seen = 0  # tokens, with padding
        self.real: Tensor | None = None  # (B,) those that are no padding; None: all of them

    def extend(
        self, attention: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
    ) -> Tensor:
        """The outputs (B, H, n, e) of the next n tokens. mask (B, seen + n) marks the real tokens;
        None: all are."""
        n = q.shape[2]
        if self.seen:
            self._check(mask, n)
            mask = None
        self.state, out = attention.steps(self.state, q, k, v, mask)
        self.seen += n
        if mask is not None:
            self.real = mask.sum(1)
        elif self.real is not None:
            self.real = self.real + n
        return out

    def _check(self, mask: Tensor | None, n: int) -> None:
        """Refuse a mask that is not the earlier one with n real tokens appended."""
        if mask is None and self.real is None:
            return
        if mask is None or self.real is None or not torch.equal(mask.sum(1), self.real + n):
            raise LunaError(
                "what the first call to a state hides as padding stays hidden, and nothing else "
                "can be: give the mask of the earlier calls with ones for the new tokens appended"
            )

    # ------------------------------------------------------------------ what a Cache asks for

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        return key_states, value_states  # `extend` follows, with the queries and the mask

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        pass

    def get_seq_length(self) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.seen + query_length, 0

    def get_max_length(self) -> int:
        return -1  # no limit

    def reset(self) -> None:
        self.state, self.seen, self.real = None, 0, None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        def select(t: Tensor) -> Tensor:
            return t.index_select(0, beam_idx.to(t.device))

        self.state, self.real = tree_map_only(Tensor, select, (self.state, self.real))

    def crop(self, tokens_to_remove: int) -> None:
        raise LunaError(
            "a state cannot forget its last tokens: assisted and speculative generation need the "
            "softmax model"
        )


def state_layer(cache: Cache, i: int) -> StateLayer:
    """Return layer i of the cache of a converted decoder."""
    while isinstance(cache, DynamicCache) and len(cache.layers) <= i:
        cache.layers.append(StateLayer())  # a DynamicCache() made without a config has none yet
    layer = cache.layers[i]
    if isinstance(layer, StateLayer):
        return layer
    if type(layer) is not DynamicLayer or layer.get_seq_length():
        raise LunaError(
            f"a converted decoder keeps a state and cannot go on from this {type(cache).__name__} "
            "of keys and values: start with an empty DynamicCache"
        )
    state = StateLayer()
    cache.layers[i] = state
    return state
