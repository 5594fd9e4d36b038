"""What a mixer is held to besides: that it takes and gives hidden states, as itself and as the
mixer that an attention becomes between its projections."""

from __future__ import annotations

import torch

from luna.testing.cases import EXACT, Case, E, N, difference, hidden, hold, mask_of
from luna.testing.numbers import excused, parts_of
from luna.testing.shapes import refused


def as_mixer(case: Case) -> None:
    """luna.mixer builds (x, mask) -> x of the same shape and dtype, and padding moves no real
    row."""
    mixer, x, m = case.mixer(), hidden(), mask_of("prefix")
    out = mixer(x, m)
    hold(out.shape == x.shape, f"hidden states of {tuple(x.shape)} come out as {tuple(out.shape)}")
    hold(out.dtype == x.dtype, f"{x.dtype} comes out as {out.dtype}")
    n = int(m[0].sum())
    alone = mixer(x[:1, :n])
    gap = difference(alone, out[:1, :n])
    hold(gap < EXACT or case.profile != "strict", f"padding moves real rows by {gap:.1g}")
    refused(f"d_model={E}", mixer, x[..., :-1])
    refused("x must be", mixer, x[0])
    refused("floating-point dtype", mixer, x.long())
    refused("mask must be bool of shape (B, n) = (2, 37)", mixer, x, m[:, 1:])


def mixer_streams(case: Case) -> None:
    """Streamed hidden states give what the whole sequence gives."""
    if not case.cls.declared.causal_form or case.profile != "strict":
        return
    mixer, x = case.mixer(causal=True), hidden()
    whole = mixer(x)
    state, first = mixer.steps(None, x[:, :20])
    outs = [first]
    for i in range(20, N):
        state, out = mixer.step(state, x[:, i])
        outs.append(out.unsqueeze(1))
    gap = difference(torch.cat(outs, 1), whole)
    hold(gap < EXACT, f"steps() of hidden states and the whole sequence differ by {gap:.1g}")


def rates(case: Case) -> None:
    """Every pattern of `rates` and of `idle` matches a parameter."""
    mixer = case.mixer()
    names = [name for name, _ in mixer.named_parameters()]
    slices = [part for name, p in mixer.named_parameters() for part, _ in parts_of(mixer, name, p)]
    for kind, patterns, among in (
        ("rates", case.cls.rates, names),
        ("idle", mixer.traits().idle, slices),
    ):
        for pattern in patterns:
            matched = any(excused(name, [pattern]) for name in among)
            listed = ", ".join(among) or "none"
            hold(matched, f"{kind} names '{pattern}', and no parameter is named so: {listed}")
