"""The passes over the tokens in Triton; calls.py has their equations and calls them. Of two
directions the first is that of `g`: from before. What belongs to the second stands behind it in
memory, `units` blocks or as many tokens later."""

from __future__ import annotations

import triton
import triton.language as tl

from luna.kernels.linear_triton.blocks import (
    block_at,
    denominator,
    dot,
    load,
    load_state,
    per_token,
    program,
    store,
    store_unit,
    sums_gradient,
    weight_gradient,
)


@triton.jit
def mapped(x, b, h, start, real, s: tl.constexpr):
    """Tokens of a block (BLOCK, dP), their features, and what backward needs of them."""
    x = load(x, b, h, start, real, s.d, s.dP, s)
    phi, kept = s.map.features(x, real, (0,), 0, s)
    return x, phi, kept


@triton.jit
def fall(g, b, h, rows, last, sizes, second: tl.constexpr, s: tl.constexpr):
    """The sums of a block's decays, G, or K of the second direction (BLOCK), and their total."""
    if second:
        g += tokens_of(sizes, s)
    each = tl.load(per_token(g, b, h, rows, sizes), mask=rows < last, other=0.0)
    return tl.cumsum(each, 0, reverse=second), tl.sum(each, 0)


@triton.jit
def tokens_of(sizes, s: tl.constexpr):
    """B H n: how far the second direction stands behind the first in memory of tokens."""
    _, n, segment, _ = sizes
    return (tl.num_programs(0) // tl.cdiv(n, segment)).to(tl.int64) * n


@triton.jit
def between(rows, G, K, s: tl.constexpr):
    """M (BLOCK, BLOCK). No exponent is above 0."""
    exponent = G[:, None] - G[None, :]
    others = float("-inf")
    if not s.causal:
        others = K[:, None] - K[None, :]
    return tl.exp(tl.where(rows[:, None] >= rows[None, :], exponent, others))


@triton.jit
def store_own(own, unit, phi, values, weights, scale, total, s: tl.constexpr):
    """What a block adds to a state: sum of scale phi [values weights]^T."""
    sums, totals = own
    scaled = phi * scale[:, None]
    S = dot(tl.trans(scaled), values, s)
    store_unit(sums, unit, S, tl.sum(scaled * weights[:, None], 0), s)
    tl.store(totals + unit, total)


@triton.jit
def keys_kernel(k, v, g, mask, own, sizes, s: tl.constexpr):
    """What the keys of each block add to the states of both directions."""
    b, h, _, unit, first, last = program(sizes, s)
    rows, real = block_at(first, mask, b, last, sizes, s)
    _, phi, _ = mapped(k, b, h, first, real, s)
    values = load(v, b, h, first, real, s.e, s.eP, s)
    ones = tl.full([s.BLOCK], 1.0, s.dtype)
    G, total = fall(g, b, h, rows, last, sizes, False, s)
    store_own(own, unit, phi, values, ones, tl.exp(total - G), total, s)
    if not s.causal:
        K, total = fall(g, b, h, rows, last, sizes, True, s)
        unit += tl.num_programs(0)
        store_own(own, unit, phi, values, ones, tl.exp(total - K), total, s)


@triton.jit
def states_kernel(own, totals, S, z, blocks, LATER: tl.constexpr, s: tl.constexpr):
    """The states that arrive at each block of one sequence and head from those before it, or from
    LATER ones, in order. A program takes one feature."""
    head = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1)
    columns = tl.arange(0, s.eP)
    live = columns < s.e
    S_sum, z_sum = tl.zeros([s.eP], s.dtype), tl.full([], 0, s.dtype)
    for i in range(blocks):
        block = head * blocks + (blocks - 1 - i if LATER else i)
        at = block * s.d + c
        tl.store(S + at * s.e + columns, S_sum, mask=live)
        tl.store(z + at, z_sum)
        unit = own + block * (s.d * (s.e + 1))
        left = tl.exp(tl.load(totals + block))
        S_sum = S_sum * left + tl.load(unit + c * s.e + columns, mask=live, other=0.0)
        z_sum = z_sum * left + tl.load(unit + s.d * s.e + c)


@triton.jit
def arriving(phi, fallen, states, unit, s: tl.constexpr):
    """What a state gives to the sums of a block's queries, which see it `fallen` (BLOCK)."""
    S, z = load_state(states[0], states[1], unit, s)
    scaled = phi * fallen[:, None]
    return dot(scaled, S, s), tl.sum(scaled * z[None, :], 1)


@triton.jit
def returning(rows_of, weights, fallen, states, unit, s: tl.constexpr):
    """The gradient of features that meet a state `fallen`: S rows + z weights of each token."""
    S, z = load_state(states[0], states[1], unit, s)
    d = dot(rows_of, tl.trans(S), s) + weights[:, None] * z[None, :]
    return d * fallen[:, None]


@triton.jit
def sums_of(phi_q, A, values, G, K, states, unit, s: tl.constexpr):
    """N (BLOCK, eP) and c (BLOCK) of weights A within the block and of what arrives."""
    N, weight = dot(A, values, s), tl.sum(A, 1)
    more, of_weights = arriving(phi_q, tl.exp(G), states, unit, s)
    N, weight = N + more, weight + of_weights
    if not s.causal:
        more, of_weights = arriving(phi_q, tl.exp(K), states, unit + tl.num_programs(0), s)
        N, weight = N + more, weight + of_weights
    return N, weight


@triton.jit
def block_of(q, k, v, g, mask, sizes, s: tl.constexpr):
    """All that the passes over queries and over keys read of their block."""
    b, h, _, unit, first, last = program(sizes, s)
    rows, real = block_at(first, mask, b, last, sizes, s)
    G, ahead = fall(g, b, h, rows, last, sizes, False, s)
    K, back = G, ahead
    if not s.causal:
        K, back = fall(g, b, h, rows, last, sizes, True, s)
    queries = mapped(q, b, h, first, real, s)
    keys = mapped(k, b, h, first, real, s)
    values = load(v, b, h, first, real, s.e, s.eP, s)
    place = b, h, unit, first, last, rows, real
    products = dot(queries[1], tl.trans(keys[1]), s)
    return place, queries, keys, values, (G, K), (ahead, back), products, between(rows, G, K, s)


@triton.jit
def queries_kernel(q, k, v, g, mask, states, out, c, sizes, s: tl.constexpr):
    """out and c (B, H, n), 0 at padding."""
    place, queries, _, values, sums, _, products, M = block_of(q, k, v, g, mask, sizes, s)
    b, h, unit, first, last, rows, _ = place
    N, weight = sums_of(queries[1], products * M, values, sums[0], sums[1], states, unit, s)
    store(out, b, h, first, last, N / denominator(weight, s)[:, None], s.e, s.eP, s)
    tl.store(per_token(c, b, h, rows, sizes), weight, mask=rows < last)


@triton.jit
def begin_decays(dg, place, pairs, second: tl.constexpr, sizes, s: tl.constexpr):
    """Of the gradient of a block's decays, what its queries give: a decay stands in the pairs of
    all queries from it on, or, in the second direction, up to it."""
    b, h, _, _, last, rows, _ = place
    at = per_token(dg, b, h, rows, sizes)
    tl.store(at, tl.cumsum(pairs, 0, reverse=not second), mask=rows < last)


@triton.jit
def end_decays(dg, place, arrived, inside, across, second: tl.constexpr, sizes, s: tl.constexpr):
    """Add what its keys give: the pairs of keys before a decay with queries of `arrived` states;
    less those `inside` that lie on one side of it; and all pairs `across` the block."""
    b, h, _, _, last, rows, _ = place
    at = per_token(dg, b, h, rows, sizes)
    total = tl.load(at, mask=rows < last, other=0.0) + across
    total += tl.cumsum(arrived, 0, reverse=second) - arrived
    tl.store(at, total - tl.cumsum(inside, 0, reverse=not second), mask=rows < last)


@triton.jit
def pairs_across(states, of_keys, unit, total, s: tl.constexpr):
    """The weights of keys on one side of a block and queries on the other, with their gradients."""
    T, t = load_state(states[0], states[1], unit, s)
    S, z = load_state(of_keys[0], of_keys[1], unit, s)
    return (tl.sum(tl.sum(S * T, 1), 0) + tl.sum(z * t, 0)) * tl.exp(total)


@triton.jit
def queries_backward_kernel(grad, q, k, v, out, g, mask, states, made, dq, sizes, s: tl.constexpr):
    """dq and dc; what queries give of the gradient of decays, and add to the states of backward."""
    place, queries, keys, values, sums, totals, products, M = block_of(q, k, v, g, mask, sizes, s)
    b, h, unit, first, last, rows, real = place
    x, phi, kept = queries
    G, K = sums
    own, dc_of, dg = (made[0], made[1]), made[2], made[3]
    dN, den, weight = sums_gradient(grad, states[2], b, h, first, rows, real, sizes, s)
    if s.rounded:  # the sum dN . o needs the digits that the output has lost
        o, _ = sums_of(phi, products * M, values, G, K, states, unit, s)
        o = o / den[:, None]
    else:
        o = load(out, b, h, first, real, s.e, s.eP, s)
    dc = weight_gradient(dN, o, weight, s)
    tl.store(per_token(dc_of, b, h, rows, sizes), dc, mask=rows < last)

    dA = (dot(dN, tl.trans(values), s) + dc[:, None]) * M
    dphi = dot(dA, keys[1], s)
    weights = dA * products
    d = returning(dN, dc, tl.exp(G), states, unit, s)
    before = tl.where(rows[:, None] > rows[None, :], weights, 0.0)
    pairs = tl.sum(phi * d, 1) + tl.sum(before, 1)
    begin_decays(dg, place, pairs, False, sizes, s)
    dphi += d
    if not s.causal:
        d = returning(dN, dc, tl.exp(K), states, unit + tl.num_programs(0), s)
        behind = tl.where(rows[:, None] < rows[None, :], weights, 0.0)
        pairs = tl.sum(phi * d, 1) + tl.sum(behind, 1)
        begin_decays(dg + tokens_of(sizes, s), place, pairs, True, sizes, s)
        dphi += d
    dx, _ = s.map.backward(dphi, phi, kept, x, real, (0,), (0,), (0,), 0, s)
    store(dq, b, h, first, last, dx, s.d, s.dP, s)
    # After all that dN is a factor of: as the other factor it takes as many registers again.
    store_own(own, unit, phi, dN, dc, tl.exp(G), totals[0], s)
    if not s.causal:
        store_own(own, unit + tl.num_programs(0), phi, dN, dc, tl.exp(K), totals[1], s)


@triton.jit
def keys_backward_kernel(
    grad, q, k, v, g, mask, states, of_keys, dg, dk, dv, sizes, s: tl.constexpr
):
    """dk and dv, and the rest of the gradient of decays; `of_keys` are S and z."""
    place, queries, keys, values, sums, totals, products, M = block_of(q, k, v, g, mask, sizes, s)
    b, h, unit, first, last, rows, real = place
    x, phi, kept = keys
    dN, _, _ = sums_gradient(grad, states[2], b, h, first, rows, real, sizes, s)
    dc = tl.load(per_token(states[3], b, h, rows, sizes), mask=real, other=0.0)
    ones = tl.full([s.BLOCK], 1.0, s.dtype)

    dA = (dot(dN, tl.trans(values), s) + dc[:, None]) * M
    dphi = dot(tl.trans(dA), queries[1], s)
    dvalues = dot(tl.trans(products * M), dN, s)
    weights = dA * products
    G, K = totals[0] - sums[0], totals[1] - sums[1]
    d = returning(values, ones, tl.exp(G), states, unit, s)
    before = tl.where(rows[:, None] > rows[None, :], weights, 0.0)
    arrived, inside = tl.sum(phi * d, 1), tl.sum(before, 0)
    dphi += d
    arrived_back, inside_back = arrived, inside
    if not s.causal:
        d = returning(values, ones, tl.exp(K), states, unit + tl.num_programs(0), s)
        behind = tl.where(rows[:, None] < rows[None, :], weights, 0.0)
        arrived_back, inside_back = tl.sum(phi * d, 1), tl.sum(behind, 0)
        dphi += d
    dx, _ = s.map.backward(dphi, phi, kept, x, real, (0,), (0,), (0,), 0, s)
    store(dk, b, h, first, last, dx, s.d, s.dP, s)
    # Of states and their gradients at once: where keys and queries are held no longer.
    across = pairs_across(states, of_keys, unit, totals[0], s)
    end_decays(dg, place, arrived, inside, across, False, sizes, s)
    if not s.causal:
        across = pairs_across(states, of_keys, unit + tl.num_programs(0), totals[1], s)
        dg += tokens_of(sizes, s)
        end_decays(dg, place, arrived_back, inside_back, across, True, sizes, s)
    more, _ = arriving(phi, tl.exp(G), states, unit, s)
    dvalues += more
    if not s.causal:
        more, _ = arriving(phi, tl.exp(K), states, unit + tl.num_programs(0), s)
        dvalues += more
    store(dv, b, h, first, last, dvalues, s.e, s.eP, s)
