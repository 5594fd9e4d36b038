"""Sums over tokens whose weights fall along the way: the recurrences of gated linear attentions,
in chunks.

    S_i = e^(g_i) S_(i-1) + k_i v_i^T     o_i = S_i^T q_i     g_i <= 0, S (D, e)
    o_i = sum_(j <= i) sum_c q_ic k_jc exp(g_(j+1),c + ... + g_i,c) v_j

A decay g_i is one number for all features (g ends in 1) or one for each (g ends in D). Both ways,
a second one, back_i, is that with which what comes from behind arrives at token i:

    o_i += sum_(j > i) sum_c q_ic k_jc exp(back_i,c + ... + back_(j-1),c) v_j

so a token's own weight, that of lag 0, is counted once. Tokens with k = 0 and g = back = 0, such as
padding, are as if they were not there.

Within a chunk weights are a masked product, as in the chunked form of GLA (Yang et al. 2023,
https://arxiv.org/abs/2312.06635); between chunks states are summed as a tree, so time and memory
are linear in n. Decays are summed within chunks alone: differences of sums over a whole sequence
would lose digits as it grows.

    B batch   H heads   n tokens   D features   e width of v   C tokens of a chunk   m chunks
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 32  # tokens, where a decay is one number; no result depends on it
SHORT = 16  # where it is one for each feature
BLOCK = 4  # tokens whose queries and keys share decays of features
# The smallest decay of a feature that a token may have, of which e^-10 = 0.00005 is left: exponents
# stay below -FLOOR * BLOCK = 40, and float32 has those up to 88.
FLOOR = -10.0


def scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    back: Tensor | None = None,
    state: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The state S (B, H, D, e) after these tokens, which follow `state`, and o (B, H, n, e), of
    q, k (B, H, n, D), v (B, H, n, e), g and back (B, H, n, 1) or (B, H, n, D). Decays of single
    features below FLOOR count as FLOOR."""
    n, vector = q.shape[2], g.shape[-1] > 1
    C = min(chunk or CHUNK, n)
    if vector:
        C = min(C, SHORT)
        g = g.clamp_min(FLOOR)
        back = None if back is None else back.clamp_min(FLOOR)
    q, k, v, g = (in_chunks(t, C) for t in (q, k, v, g))
    G = g.cumsum(-2)  # (B, H, m, C, 1 or D)
    K = None if back is None else in_chunks(back, C).flip(-2).cumsum(-2).flip(-2)
    inside = weights_by_feature if vector else weights
    out = inside(q, k, G, K) @ v

    if state is None:
        state = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    S, last = states(k, v, G, G[..., -1:, :], state)
    out = out + (q * G.exp()) @ S
    if K is not None:  # the same from the last chunk to the first, from no state
        k, v, total = (t.flip(2) for t in (k, v, K[..., :1, :]))
        R, _ = states(k, v, K.flip(2), total, torch.zeros_like(state))
        out = out + (q * K.exp()) @ R.flip(2)
    return last, out.flatten(2, 3)[:, :, :n]


def in_chunks(t: Tensor, C: int) -> Tensor:
    """(B, H, m, C, .) of (B, H, n, .); the tokens that fill the last chunk are 0."""
    missing = -t.shape[2] % C
    t = F.pad(t, (0, 0, 0, missing)) if missing else t
    return t.unflatten(2, (-1, C))


def weights(q: Tensor, k: Tensor, G: Tensor, K: Tensor | None) -> Tensor:
    """The weights within chunks, (B, H, m, C, C), one decay for all features. No exponent is above
    0, for those of later tokens are masked before the exponential."""
    lower = G.new_ones(G.shape[-2], G.shape[-2], dtype=torch.bool).tril()
    others = G.new_full((), float("-inf")) if K is None else K - K.mT
    return (q @ k.mT) * torch.where(lower, G - G.mT, others).exp()


def weights_by_feature(q: Tensor, k: Tensor, G: Tensor, K: Tensor | None) -> Tensor:
    """The same with a decay for each feature."""
    A = lower_weights(q, k, G)
    if K is None:
        return A
    ahead = lower_weights(q.flip(-2), k.flip(-2), K.flip(-2)).flip(-1, -2)
    return A + ahead.triu(1)


def lower_weights(q: Tensor, k: Tensor, G: Tensor) -> Tensor:
    """Of j <= i. The two factors of a product share its decay, e^G on the queries, e^-G on the
    keys: few tokens can do so without overflow. Of more the second half meets the first at their
    border, where no exponent is above 0."""
    C = G.shape[-2]
    if C <= BLOCK:
        return ((q * G.exp()) @ (k * (-G).exp()).mT).tril()
    half = C // 2
    border = G[..., half - 1 : half, :]
    (q1, q2), (k1, k2), (G1, G2) = (t.split([half, C - half], -2) for t in (q, k, G))
    G2 = G2 - border
    first, second = lower_weights(q1, k1, G1), lower_weights(q2, k2, G2)
    across = (q2 * G2.exp()) @ (k1 * (border - G1).exp()).mT
    top = F.pad(first, (0, C - half))
    return torch.cat([top, torch.cat([across, second], -1)], -2)


def states(k: Tensor, v: Tensor, G: Tensor, total: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The states before each chunk, (B, H, m, D, e), and the one after the last, with decays G up
    to each token and `total` of whole chunks (B, H, m, 1, 1 or D)."""
    own = (k * (total - G).exp()).mT @ v
    decay = total.exp().mT  # (B, H, m, 1 or D, 1)
    S = states_before(own, decay, state)
    return S, decay[:, :, -1] * S[:, :, -1] + own[:, :, -1]


def states_before(own: Tensor, decay: Tensor, state: Tensor) -> Tensor:
    """S_c of S_(c+1) = decay_c S_c + own_c with S_0 = state. Neighbours become one chunk until one
    is left: a tree of depth log2(m), and no state depends on later chunks, not even by rounding."""
    m = own.shape[2]
    if m == 1:
        return state.unsqueeze(2)
    if m % 2:
        own = F.pad(own, (0, 0, 0, 0, 0, 1))
        decay = F.pad(decay, (0, 0, 0, 0, 0, 1))
    first, second = own[:, :, ::2], own[:, :, 1::2]
    decay_of_first, decay_of_second = decay[:, :, ::2], decay[:, :, 1::2]
    pairs = decay_of_second * first + second
    before = states_before(pairs, decay_of_first * decay_of_second, state)
    between = decay_of_first * before + first
    return torch.stack([before, between], 3).flatten(2, 3)[:, :, :m]


def dense_weights(q: Tensor, k: Tensor, g: Tensor, back: Tensor | None = None) -> Tensor:
    """The weights (B, H, n, n) of all pairs, from the definition: in O(n^2 D)."""
    n, total = q.shape[2], g.cumsum(2)
    exponent = total.unsqueeze(3) - total.unsqueeze(2)  # (B, H, i, j, 1 or D), for j <= i
    lower = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()[..., None]
    others = torch.full_like(exponent, float("-inf"))
    if back is not None:
        before = back.cumsum(2) - back  # without the token's own
        others = before.unsqueeze(2) - before.unsqueeze(3)
    decay = torch.where(lower, exponent, others).exp()
    return (q.unsqueeze(3) * k.unsqueeze(2) * decay).sum(-1)


def shifted(g: Tensor, first: Tensor | None = None) -> Tensor:
    """g (B, H, n, .) one token later, the first one being `first`, or 0: decays of methods whose
    token acts on what it leaves behind, not on what it finds."""
    first = torch.zeros_like(g[:, :, :1]) if first is None else first
    return torch.cat([first, g[:, :, :-1]], 2)


def with_ones(v: Tensor) -> Tensor:
    """[v, 1]: the last sum is that of the weights."""
    return torch.cat([v, torch.ones_like(v[..., :1])], -1)
