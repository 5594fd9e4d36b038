"""The one check of q, k, v, masks and x, for every method.

Kernels index raw memory, so inputs that do not fit must never reach one. Only shapes, dtypes and
devices are read: it costs some microseconds, and works on the meta device and in torch.compile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from luna.base import Attention


def misfit(
    attention: Attention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    x: Tensor | None,
    key_mask: Tensor | None,
) -> str | None:
    """The sentence that says why these inputs are refused, or None where they fit."""
    H, d = attention.n_heads, attention.head_dim
    q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    fits = len(q_shape) == len(k_shape) == len(v_shape) == 4
    if fits:
        (B, _, n, _), m = q_shape, k_shape[2]
        fits = (q_shape, k_shape, v_shape[:3]) == ((B, H, n, d), (B, H, m, d), (B, H, m))
    if not fits or 0 in (B, n, m, v_shape[3]):
        return (
            f"attention '{attention.name}' was built for n_heads={H}, head_dim={d}: q must be "
            f"(B, {H}, n, {d}), k (B, {H}, m, {d}) and v (B, {H}, m, e), none of them empty; "
            f"got q {tuple(q_shape)}, k {tuple(k_shape)}, v {tuple(v_shape)}"
        )
    if not (q.dtype == k.dtype == v.dtype and q.is_floating_point()):
        return (
            f"q, k and v must have one floating-point dtype, got {q.dtype}, {k.dtype} and "
            f"{v.dtype}: convert them with .to(dtype)"
        )
    device = q.device
    for name, t in (("k", k), ("v", v), ("mask", mask), ("key_mask", key_mask), ("x", x)):
        if t is not None and t.device != device:
            return f"{name} is on {t.device} and q on {device}: move one of them"
    if attention.bound_to_max_len and max(n, m) > attention.max_len:
        return (
            f"{attention.name} was built for max_len={attention.max_len} tokens and got "
            f"{max(n, m)}: build it with a larger max_len"
        )
    if (n != m or key_mask is not None) and (refusal := _uncrossed(attention, n, m)):
        return refusal
    if n != m and mask is not None and key_mask is None:
        return (
            f"one mask cannot mark {n} queries and {m} keys: give key_mask (B, m) for the keys, "
            "and mask (B, n) for the queries where some of them are padding"
        )
    for name, t, letter, length in (("mask", mask, "n", n), ("key_mask", key_mask, "m", m)):
        if t is not None and (t.dtype != torch.bool or t.shape != (B, length)):
            return (
                f"{name} must be bool of shape (B, {letter}) = ({B}, {length}), True = real token; "
                f"got {t.dtype} of shape {tuple(t.shape)}"
            )
    if x is not None and (x.dim() != 3 or x.shape[:2] != (B, n)):
        return f"x must be hidden states (B, n, width) = ({B}, {n}, width), got {tuple(x.shape)}"
    return None


def _uncrossed(attention: Attention, n: int, m: int) -> str | None:
    """Why it cannot attend from n queries to m keys of another sequence, or None where it can."""
    if not attention.cross_form:
        how = ": q, k and v must be of one sequence, without a key_mask"
    elif attention.causal:
        how = " with causal=True: its keys must be the tokens of its queries"
    elif attention.slot.alibi:
        how = " with alibi=True: distances are those within one sequence"
    elif attention.profile != "strict":
        how = f" under profile={attention.profile}: build it with profile=strict"
    else:
        return None  # before n and m are printed: in torch.compile that would fix their values
    return f"attention '{attention.name}' has no cross-attention ({n} queries, {m} keys){how}"
