"""The four passes over the tokens in Triton; by_triton.py has their equations and calls them. A
program takes one segment of one sequence and head, block by block."""

from __future__ import annotations

import triton
import triton.language as tl

from luna.kernels.luna_attention.triton_blocks import (
    block_at,
    denominator,
    dot,
    earlier,
    features,
    features_backward,
    load,
    load_state,
    output_gradient,
    program,
    store,
    store_map_gradient,
    store_state,
    table_of,
)


@triton.jit
def keys_kernel(k, v, mask, maps, S, z, H, n, segment, s: tl.constexpr):
    """S (units, D, e) and z (units, D) of each segment alone."""
    b, h, g, unit, first, last = program(H, n, segment, s)
    S_sum, z_sum = tl.zeros([s.D, s.eP], s.dtype), tl.zeros([s.D], s.dtype)
    for start in range(first, last, s.BLOCK):
        rows, real = block_at(start, mask, b, last, n, s)
        x = load(k, b, h, rows, real, s.d, s.dP, s.dtype)
        values = load(v, b, h, rows, real, s.e, s.eP, s.dtype)
        phi, _, _, _, _ = features(x, real, maps, g, s)
        S_sum += dot(tl.trans(phi), values, s)
        z_sum += tl.sum(phi, 0)
    store_state(S, z, unit, S_sum, z_sum, s)


@triton.jit
def queries_kernel(q, k, v, mask, maps, S, z, out, c, H, n, segment, s: tl.constexpr):
    """out and c (B, H, n), 0 at padding; S, z (states, D, .), one a head, or one a segment."""
    b, h, g, unit, first, last = program(H, n, segment, s)
    S_sum, z_sum = load_state(S, z, unit if s.causal else b * H + h, s)
    for start in range(first, last, s.BLOCK):
        rows, real = block_at(start, mask, b, last, n, s)
        x = load(q, b, h, rows, real, s.d, s.dP, s.dtype)
        phi, _, _, _, _ = features(x, real, maps, g, s)
        if not s.causal:
            S_sum, z_sum = load_state(S, z, b * H + h, s)
        N = dot(phi, S_sum, s)
        weight = tl.sum(phi * z_sum[None, :], 1)
        if s.causal:
            x = load(k, b, h, rows, real, s.d, s.dP, s.dtype)
            values = load(v, b, h, rows, real, s.e, s.eP, s.dtype)
            phi_k, _, _, _, _ = features(x, real, maps, g, s)
            A = earlier(rows, dot(phi, tl.trans(phi_k), s))
            N += dot(A, values, s)
            weight += tl.sum(A, 1)
            S_sum += dot(tl.trans(phi_k), values, s)
            z_sum += tl.sum(phi_k, 0)
        store(out, b, h, rows, last, N / denominator(weight, s)[:, None], s.e, s.eP)
        tl.store(c + (b * H + h) * n + rows, weight, mask=rows < last)


@triton.jit
def queries_backward_kernel(
    grad,
    q,
    k,
    v,
    mask,
    maps,
    S,
    z,
    out,
    c,
    dS,
    dz,
    dq,
    dW,
    dbias,
    dtable,
    H,
    n,
    segment,
    copies,
    s: tl.constexpr,
):
    """dq; dS, dz, dW and dbias of each segment alone; the table's gradient added to dtable."""
    b, h, g, unit, first, last = program(H, n, segment, s)
    dtable = table_of(dtable, b, g, unit, n, segment, copies, s)
    S_sum, z_sum = load_state(S, z, unit if s.causal else b * H + h, s)
    dS_sum, dz_sum = tl.zeros([s.D, s.eP], s.dtype), tl.zeros([s.D], s.dtype)
    dW_sum, dbias_sum = tl.zeros([s.MP, s.dP], s.dtype), tl.zeros([s.MP], s.dtype)
    for start in range(first, last, s.BLOCK):
        rows, real = block_at(start, mask, b, last, n, s)
        x = load(q, b, h, rows, real, s.d, s.dP, s.dtype)
        phi, slope, steep, u, j = features(x, real, maps, g, s)
        dN, dc = output_gradient(grad, out, c, b, h, H, n, rows, real, s)
        if not s.causal:
            S_sum, z_sum = load_state(S, z, b * H + h, s)
        dphi = dot(dN, tl.trans(S_sum), s) + dc[:, None] * z_sum[None, :]
        if s.causal:
            keys = load(k, b, h, rows, real, s.d, s.dP, s.dtype)
            values = load(v, b, h, rows, real, s.e, s.eP, s.dtype)
            phi_k, _, _, _, _ = features(keys, real, maps, g, s)
            dA = earlier(rows, dot(dN, tl.trans(values), s) + dc[:, None])
            dphi += dot(dA, phi_k, s)
            S_sum += dot(tl.trans(phi_k), values, s)
            z_sum += tl.sum(phi_k, 0)
        dS_sum += dot(tl.trans(phi), dN, s)
        dz_sum += tl.sum(phi * dc[:, None], 0)
        dx, dW_block, dbias_block = features_backward(
            dphi, phi, slope, steep, u, j, x, real, maps, dtable, g, s
        )
        dW_sum += dW_block
        dbias_sum += dbias_block
        store(dq, b, h, rows, last, dx, s.d, s.dP)
    store_state(dS, dz, unit, dS_sum, dz_sum, s)
    store_map_gradient(dW, dbias, unit, dW_sum, dbias_sum, s)


@triton.jit
def keys_backward_kernel(
    grad,
    q,
    k,
    v,
    mask,
    maps,
    out,
    c,
    R,
    r,
    dk,
    dv,
    dW,
    dbias,
    dtable,
    H,
    n,
    segment,
    copies,
    s: tl.constexpr,
):
    """dk, dv; dW and dbias of each segment alone; the table's gradient added to dtable. R, r are
    the sums of dS, dz over all queries, or over those of later segments."""
    b, h, g, unit, first, last = program(H, n, segment, s)
    dtable = table_of(dtable, b, g, unit, n, segment, copies, s)
    R_sum, r_sum = load_state(R, r, unit if s.causal else b * H + h, s)
    dW_sum, dbias_sum = tl.zeros([s.MP, s.dP], s.dtype), tl.zeros([s.MP], s.dtype)
    blocks = tl.cdiv(last - first, s.BLOCK)
    for step in range(0, blocks):  # from the last to the first: R grows towards it
        start = first + (blocks - 1 - step) * s.BLOCK
        rows, real = block_at(start, mask, b, last, n, s)
        x = load(k, b, h, rows, real, s.d, s.dP, s.dtype)
        values = load(v, b, h, rows, real, s.e, s.eP, s.dtype)
        phi, slope, steep, u, j = features(x, real, maps, g, s)
        if not s.causal:
            R_sum, r_sum = load_state(R, r, b * H + h, s)
        dvalues = dot(phi, R_sum, s)
        dphi = dot(values, tl.trans(R_sum), s) + r_sum[None, :]
        if s.causal:
            queries = load(q, b, h, rows, real, s.d, s.dP, s.dtype)
            phi_q, _, _, _, _ = features(queries, real, maps, g, s)
            dN, dc = output_gradient(grad, out, c, b, h, H, n, rows, real, s)
            A = earlier(rows, dot(phi_q, tl.trans(phi), s))
            dA = earlier(rows, dot(dN, tl.trans(values), s) + dc[:, None])
            dvalues += dot(tl.trans(A), dN, s)
            dphi += dot(tl.trans(dA), phi_q, s)
            R_sum += dot(tl.trans(phi_q), dN, s)
            r_sum += tl.sum(phi_q * dc[:, None], 0)
        dx, dW_block, dbias_block = features_backward(
            dphi, phi, slope, steep, u, j, x, real, maps, dtable, g, s
        )
        dW_sum += dW_block
        dbias_sum += dbias_block
        store(dk, b, h, rows, last, dx, s.d, s.dP)
        store(dv, b, h, rows, last, dvalues, s.e, s.eP)
    store_map_gradient(dW, dbias, unit, dW_sum, dbias_sum, s)
