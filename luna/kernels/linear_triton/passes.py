"""The passes over the tokens in Triton, for every feature map; calls.py has their equations and
calls them. A program takes one segment of one sequence and head, block by block."""

from __future__ import annotations

import triton
import triton.language as tl

from luna.kernels.linear_triton.blocks import (
    block_at,
    denominator,
    dot,
    earlier,
    load,
    load_state,
    magnitudes,
    per_token,
    program,
    store,
    store_unit,
    sums_gradient,
    through_magnitudes,
    weight_gradient,
)


@triton.jit
def keys_kernel(k, v, mask, maps, units, sizes, s: tl.constexpr):
    """S (D, e) and z (D) of each segment alone."""
    b, h, g, unit, first, last = program(sizes, s)
    S_sum, z_sum = tl.zeros([s.D, s.eP], s.dtype), tl.zeros([s.D], s.dtype)
    for start in range(first, last, s.BLOCK):
        _, real = block_at(start, mask, b, last, sizes, s)
        x = load(k, b, h, start, real, s.d, s.dP, s)
        values = load(v, b, h, start, real, s.e, s.eP, s)
        phi, _ = s.map.features(x, real, maps, g, s)
        S_sum += dot(tl.trans(phi), values, s)
        z_sum += tl.sum(magnitudes(phi, s), 0)
    store_unit(units, unit, S_sum, z_sum, s)


@triton.jit
def states_kernel(
    units, S, z, segments, CAUSAL: tl.constexpr, LATER: tl.constexpr, s: tl.constexpr
):
    """Sums of the units of one sequence and head, in order; causal, those that each segment starts
    from: of the segments before it, or LATER ones. A program takes one feature."""
    head = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1)
    features: tl.constexpr = s.M * s.L
    columns = tl.arange(0, s.eP)
    live = columns < s.e
    S_sum, z_sum = tl.zeros([s.eP], s.dtype), tl.full([], 0, s.dtype)
    for i in range(segments):
        segment = head * segments + (segments - 1 - i if LATER else i)
        if CAUSAL:
            at = segment * features + c
            tl.store(S + at * s.e + columns, S_sum, mask=live)
            tl.store(z + at, z_sum)
        unit = units + segment * (features * (s.e + 1))
        S_sum += tl.load(unit + c * s.e + columns, mask=live, other=0.0)
        z_sum += tl.load(unit + features * s.e + c)
    if not CAUSAL:
        at = head * features + c
        tl.store(S + at * s.e + columns, S_sum, mask=live)
        tl.store(z + at, z_sum)


@triton.jit
def queries_kernel(q, k, v, mask, maps, states, out, c, sizes, s: tl.constexpr):
    """out and c (B, H, n), 0 at padding; states S, z (states, D, .), one a head, or one a
    segment."""
    S, z = states
    b, h, g, unit, first, last = program(sizes, s)
    S_sum, z_sum = load_state(S, z, unit if s.causal else b * sizes[0] + h, s)
    for start in range(first, last, s.BLOCK):
        rows, real = block_at(start, mask, b, last, sizes, s)
        x = load(q, b, h, start, real, s.d, s.dP, s)
        phi, _ = s.map.features(x, real, maps, g, s)
        if not s.causal:  # read again in every block: registers are dearer
            S_sum, z_sum = load_state(S, z, b * sizes[0] + h, s)
        weight = tl.sum(magnitudes(phi, s) * z_sum[None, :], 1)
        N = dot(phi, S_sum, s)
        if s.causal:
            x = load(k, b, h, start, real, s.d, s.dP, s)
            phi_k, _ = s.map.features(x, real, maps, g, s)
            A = earlier(rows, dot(phi, tl.trans(phi_k), s))
            values = load(v, b, h, start, real, s.e, s.eP, s)  # not held while keys are mapped
            z_sum += tl.sum(magnitudes(phi_k, s), 0)
            S_sum += dot(tl.trans(phi_k), values, s)
            N += dot(A, values, s)
            if s.absolute:
                A = earlier(rows, dot(tl.abs(phi), tl.trans(tl.abs(phi_k)), s))
            weight += tl.sum(A, 1)
        if s.divided:
            N = N / denominator(weight, s)[:, None]
        store(out, b, h, start, last, N, s.e, s.eP, s)
        tl.store(per_token(c, b, h, rows, sizes), weight, mask=rows < last)


@triton.jit
def queries_backward_kernel(
    grad, q, k, v, out, mask, maps, states, made, dq, results, sizes, s: tl.constexpr
):
    """dq and dc; dS, dz of each segment alone, and the results of the feature map."""
    S, z, c = states
    units, dc_of = made
    b, h, g, unit, first, last = program(sizes, s)
    results, sums = s.map.begin(results, b, g, unit, sizes, s)
    S_sum, z_sum = load_state(S, z, unit if s.causal else b * sizes[0] + h, s)
    dS_sum, dz_sum = tl.zeros([s.D, s.eP], s.dtype), tl.zeros([s.D], s.dtype)
    for start in range(first, last, s.BLOCK):
        rows, real = block_at(start, mask, b, last, sizes, s)
        x = load(q, b, h, start, real, s.d, s.dP, s)
        phi, kept = s.map.features(x, real, maps, g, s)
        dN, den, weight = sums_gradient(grad, c, b, h, start, rows, real, sizes, s)
        if not s.causal:
            S_sum, z_sum = load_state(S, z, b * sizes[0] + h, s)
        if s.rounded:  # the sum dN . o needs the digits that the output has lost
            o = dot(phi, S_sum, s)
        else:
            o = load(out, b, h, start, real, s.e, s.eP, s)
        dphi = dot(dN, tl.trans(S_sum), s)
        if s.causal:
            keys = load(k, b, h, start, real, s.d, s.dP, s)
            values = load(v, b, h, start, real, s.e, s.eP, s)
            phi_k, _ = s.map.features(keys, real, maps, g, s)
            dA = dot(dN, tl.trans(values), s)
            if s.rounded:
                A = earlier(rows, dot(phi, tl.trans(phi_k), s))
                o += dot(A, values, s)
        if s.rounded:
            o = o / den[:, None]
        dc = weight_gradient(dN, o, weight, s)
        dphi += through_magnitudes(phi, dc[:, None] * z_sum[None, :], s)
        if s.causal:
            if s.absolute:
                weights = earlier(rows, dc[:, None] + tl.zeros_like(dA))
                dphi += through_magnitudes(phi, dot(weights, tl.abs(phi_k), s), s)
                dA = earlier(rows, dA)
            else:
                dA = earlier(rows, dA + dc[:, None])
            dphi += dot(dA, phi_k, s)
            S_sum += dot(tl.trans(phi_k), values, s)
            z_sum += tl.sum(magnitudes(phi_k, s), 0)
            tl.store(per_token(dc_of, b, h, rows, sizes), dc, mask=rows < last)
        dS_sum += dot(tl.trans(phi), dN, s)
        dz_sum += tl.sum(magnitudes(phi, s) * dc[:, None], 0)
        dx, sums = s.map.backward(dphi, phi, kept, x, real, maps, results, sums, g, s)
        store(dq, b, h, start, last, dx, s.d, s.dP, s)
    store_unit(units, unit, dS_sum, dz_sum, s)
    s.map.end(results, unit, sums, s)


@triton.jit
def keys_backward_kernel(
    grad, q, k, v, mask, maps, states, dk, dv, results, sizes, s: tl.constexpr
):
    """dk, dv and the results of the feature map. R, r are the sums of dS, dz over all queries, or
    over those of later segments."""
    R, r, c, dc_of = states
    b, h, g, unit, first, last = program(sizes, s)
    results, sums = s.map.begin(results, b, g, unit, sizes, s)
    R_sum, r_sum = load_state(R, r, unit if s.causal else b * sizes[0] + h, s)
    blocks = tl.cdiv(last - first, s.BLOCK)
    for step in range(0, blocks):  # from the last to the first: R grows towards it
        start = first + (blocks - 1 - step) * s.BLOCK
        rows, real = block_at(start, mask, b, last, sizes, s)
        x = load(k, b, h, start, real, s.d, s.dP, s)
        values = load(v, b, h, start, real, s.e, s.eP, s)
        phi, kept = s.map.features(x, real, maps, g, s)
        if not s.causal:
            R_sum, r_sum = load_state(R, r, b * sizes[0] + h, s)
        dvalues = dot(phi, R_sum, s)
        dphi = dot(values, tl.trans(R_sum), s)
        dphi += through_magnitudes(phi, r_sum[None, :] + tl.zeros_like(dphi), s)
        if s.causal:
            queries = load(q, b, h, start, real, s.d, s.dP, s)
            phi_q, _ = s.map.features(queries, real, maps, g, s)
            dN, _, _ = sums_gradient(grad, c, b, h, start, rows, real, sizes, s)
            dc = tl.load(per_token(dc_of, b, h, rows, sizes), mask=real, other=0.0)
            A = earlier(rows, dot(phi_q, tl.trans(phi), s))
            dA = dot(dN, tl.trans(values), s)
            if s.absolute:
                weights = earlier(rows, dc[:, None] + tl.zeros_like(dA))
                weights = dot(tl.trans(weights), tl.abs(phi_q), s)
                dphi += through_magnitudes(phi, weights, s)
                dA = earlier(rows, dA)
            else:
                dA = earlier(rows, dA + dc[:, None])
            dvalues += dot(tl.trans(A), dN, s)
            dphi += dot(tl.trans(dA), phi_q, s)
            R_sum += dot(tl.trans(phi_q), dN, s)
            r_sum += tl.sum(magnitudes(phi_q, s) * dc[:, None], 0)
        dx, sums = s.map.backward(dphi, phi, kept, x, real, maps, results, sums, g, s)
        store(dk, b, h, start, last, dx, s.d, s.dP, s)
        store(dv, b, h, start, last, dvalues, s.e, s.eP, s)
    s.map.end(results, unit, sums, s)
