"""Any method in place of torch's nn.MultiheadAttention, for layers that torch or others wrote.

layer = nn.TransformerEncoderLayer(64, nhead=2, batch_first=True)
layer.self_attn = luna.torch_attention("luna", embed_dim=64, num_heads=2, max_len=1024)
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from luna.errors import LunaError
from luna.mixing import Mixer
from luna.registry import mixer


class TorchAttention(nn.Module):
    """A mixer that is called as nn.MultiheadAttention is: (output, None), since no method here
    makes weights to return."""

    # nn.TransformerEncoderLayer reads these, and by them leaves its fused path alone, which
    # computes softmax attention from the weights of nn.MultiheadAttention.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, mixer: Mixer, batch_first: bool = True):
        super().__init__()
        self.mixer, self.batch_first = mixer, batch_first

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """(B, n, E), or (n, B, E) without `batch_first`. `key_padding_mask` (B, n) is True at
        padding, or a number other than 0 there: the opposite of our masks."""
        if key is not query or value is not query:
            raise LunaError(
                "luna.torch_attention attends within one sequence: query, key and value must be "
                "the same tensor"
            )
        if need_weights:
            raise LunaError("no weights are made that could be returned: need_weights=False")
        if (attn_mask is not None or is_causal) and not (is_causal and self.mixer.causal):
            raise LunaError(
                "the only attn_mask that it can follow is a causal one: build it with causal=True "
                "and call it with is_causal=True"
            )
        mask = None
        if key_padding_mask is not None:
            mask = key_padding_mask == 0
        x = query if self.batch_first else query.transpose(0, 1)
        out = self.mixer(x, mask)
        return out if self.batch_first else out.transpose(0, 1), None


def torch_attention(
    name: str,
    embed_dim: int,
    num_heads: int,
    *,
    max_len: int,
    batch_first: bool = True,
    **settings: Any,
) -> TorchAttention:
    """Build a stand-in for nn.MultiheadAttention: self-attention of one sequence, with padding, and
    causal with causal=True.

    name         one of `luna.names()`
    embed_dim    the width of the hidden states
    num_heads    its heads
    max_len      tokens of the longest sequence
    batch_first  hidden states are (B, n, embed_dim), else (n, B, embed_dim)
    settings     those of `luna.mixer`, such as causal, and the method's own options
    returns      a module, called as nn.MultiheadAttention is
    """
    built = mixer(name, d_model=embed_dim, n_heads=num_heads, max_len=max_len, **settings)
    return TorchAttention(built, batch_first)
