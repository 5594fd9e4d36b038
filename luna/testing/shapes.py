"""Shapes, masks and inputs that do not fit: attentions on q, k, v."""

from __future__ import annotations

import torch
from torch import Tensor

from luna.errors import LunaError
from luna.testing.cases import (
    EXACT,
    VISIBLE,
    Case,
    Contradiction,
    difference,
    hold,
    inputs,
    mask_of,
    width,
)


def refused(words: str, call: object, *arguments: object, **named: object) -> None:
    """Hold a call to be refused by a LunaError with these words."""
    try:
        call(*arguments, **named)  # type: ignore[operator]
    except LunaError as error:
        hold(words in str(error), f"it should be refused with '{words}', and was with '{error}'")
        return
    raise Contradiction(f"it should be refused with '{words}', and was not")


def shape(case: Case) -> None:
    """Outputs have the shape and the precision of the values, for one token too."""
    for batch, heads, n in ((1, 1, 1), (2, 1, 2), (1, 2, 33)):
        attention = case.build(n_heads=heads)
        q, k, v, x = inputs(n, batch=batch, heads=heads)
        for m in (None, mask_of("scatter", n, batch)):
            out = attention(q, k, v, m, x)
            hold(out.shape == v.shape, f"outputs must be {tuple(v.shape)}, got {tuple(out.shape)}")
            hold(out.dtype == torch.float64, f"float64 came out as {out.dtype}")
            hold(bool(out.isfinite().all()), f"{n} tokens give numbers that are not finite")


def d_v(case: Case) -> None:
    """Columns of v do not know each other: a part of them gives a part of the output."""
    attention = case.build()
    for e in (6, 24):
        q, k, v, x = inputs(d_v=e)
        out = attention(q, k, v, mask_of("scatter"), x)
        hold(out.shape == v.shape, f"values of width {e} came out as {tuple(out.shape)}")


def one_token(case: Case) -> None:
    """n = 1: a row-stochastic method can only return the value itself."""
    attention = case.build()
    q, k, v, x = inputs(1, tame=True)
    out = attention(q, k, v, None, x)
    if attention.traits().row_stochastic:
        gap = difference(out, v)
        hold(gap < EXACT, "one token does not come out as itself: declare row_stochastic=False")


def no_mask(case: Case) -> None:
    """No mask gives what a mask without padding gives."""
    attention = case.build()
    q, k, v, x = inputs()
    gap = difference(attention(q, k, v, None, x), attention(q, k, v, mask_of("full"), x))
    hold(gap < EXACT, f"no mask and a mask of ones differ by {gap:.1g}")


def strides(case: Case) -> None:
    """q, k, v as a network makes them: permuted views of one tensor."""
    attention = case.build()
    q, k, v, x = inputs()
    packed = torch.stack([q, k, v]).permute(1, 3, 0, 2, 4).contiguous()  # (B, n, 3, H, d)
    views = packed.permute(2, 0, 3, 1, 4).unbind(0)
    m = mask_of("scatter")
    gap = difference(attention(*views, m, x), attention(q, k, v, m, x))
    hold(gap < EXACT, f"views of one product give another result, by {gap:.1g}")


def max_len(case: Case) -> None:
    """A method whose parameters belong to positions refuses longer inputs; any other one works."""
    attention = case.build(max_len=31)
    q, k, v, x = inputs(95)  # blocks are filled up, so a few tokens more may find parameters
    if attention.traits().bound_to_max_len:
        refused("built for max_len=31 tokens and got 95", attention, q, k, v, None, x)
        return
    try:
        out = attention(q, k, v, None, x)
    except Exception as error:
        raise Contradiction(
            f"95 tokens with max_len=31 end in {type(error).__name__}: declare "
            "bound_to_max_len=True, and they are refused in one sentence"
        ) from error
    hold(bool(out.isfinite().all()), "95 tokens with max_len=31 give numbers that are not finite")


def wrong_inputs(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> dict[str, tuple[Tensor, ...]]:
    """What must not reach a kernel: arguments of forward, by the words of their refusal."""
    narrow, third, meta = q[..., :8], torch.cat([q, q[:, :1]], 1), q.to("meta")
    full = mask_of("full")
    return {
        "got q (2, 2, 37, 8)": (narrow, k, v),
        "got q (2, 3, 37, 16), k (2, 3, 37, 16), v (2, 3, 37, 16)": (third, third, third),
        "got q (1, 2, 37, 16), k (2, 2": (q[:1], k, v),
        "got q (2, 2, 37, 16), k (2, 2, 37, 16), v (2, 2, 36, 16)": (q, k, v[:, :, 1:]),
        "none of them empty; got q (2, 2, 0, 16)": (q[:, :, :0], k[:, :, :0], v[:, :, :0]),
        "got q (2, 37, 16)": (q[:, 0], k, v),
        "one floating-point dtype, got torch.float32, torch.float64": (q.float(), k, v),
        "one floating-point dtype, got torch.int64": (q.long(), k.long(), v.long()),
        "k is on meta and q on cpu": (q, meta, v),
        "mask is on meta and q on cpu": (q, k, v, full.to("meta")),
        "mask must be bool of shape (B, n) = (2, 37), True = real token; got torch.float64": (
            q,
            k,
            v,
            full.double(),
        ),
        "True = real token; got torch.bool of shape (2, 36)": (q, k, v, full[:, 1:]),
        "x must be hidden states (B, n, width) = (2, 37, width)": (q, k, v, full, x[:, 1:]),
    }


def contract(case: Case) -> None:
    """Inputs that do not fit are refused before any kernel."""
    attention = case.build()
    q, k, v, x = inputs()
    for words, given in wrong_inputs(q, k, v, x).items():
        arguments = [*given, *(None, x)[len(given) - 3 :]]
        refused(words, attention, *arguments)
        values_alone = "v (2, 2, 36" in words or "empty" in words
        if attention.traits().has_matrix and not values_alone:
            refused("", attention.matrix, *arguments[:2], *arguments[3:])


def cross(case: Case) -> None:
    """Keys and values of another sequence: each query on its own, padded keys out of sight; or
    refused, where the method has no such form. That sequence may be longer, shorter or as long."""
    attention = case.build()
    for n, m in ((5, 37), (37, 5), (37, 37)):
        e = width(attention, 6)
        q, x = inputs(n)[0], inputs(n)[3]
        _, k, v, _ = inputs(m, d_v=e, seed=1)
        queries, keys = mask_of("prefix", n), mask_of("scatter", m)
        if not attention.traits().cross_form:
            words = f"'{case.name}' has no cross-attention"
            refused(words, attention, q, k, v, queries, x, key_mask=keys)
            refused(words, attention.matrix, q, k, queries, x, key_mask=keys)
            continue
        out = attention(q, k, v, queries, key_mask=keys)
        hold(out.shape == (2, q.shape[1], n, e), "cross-attention gives another shape")
        if attention.traits().has_matrix:
            A = attention.matrix(q, k, queries, key_mask=keys)
            gap = difference(A @ v, out)
            hold(gap < EXACT, f"in cross-attention matrix() v and the output differ by {gap:.1g}")
            unseen = A.masked_select(~keys[:, None, None, :])
            hold(bool((unseen == 0).all()), "padded keys of another sequence have weights")
        padded = out.masked_select(~queries[:, None, :, None])
        hold(bool((padded == 0).all()), "padded queries do not come out 0 in cross-attention")
        one = attention(q[:, :, :1], k, v, key_mask=keys)
        gap = difference(one, attention(q, k, v, key_mask=keys)[:, :, :1])
        hold(
            gap < EXACT, f"queries meet in cross-attention, by {gap:.1g}: declare cross_form=False"
        )
        gap = difference(one, attention(q, k, v)[:, :, :1])
        hold(gap > VISIBLE, "the mask of another sequence's keys is not read")
    if attention.traits().cross_form:
        both = mask_of("scatter")  # the same sequence on both sides is self-attention
        gap = difference(attention(q, k, v, both, key_mask=both), attention(q, k, v, both))
        hold(gap < EXACT, f"a sequence on both sides is not self-attention, by {gap:.1g}")
        words = "one mask cannot mark 5 queries and 37 keys"
        refused(words, attention, q[:, :, :5], k, v, mask_of("full", 5))


def no_cross(case: Case) -> None:
    """Causal attention and the public profiles refuse keys of another sequence."""
    if not case.cls.declared.cross_form:
        return
    q, (_, k, v, _) = inputs(5)[0], inputs()
    for profile in case.cls.profiles[1:]:
        refused(f"under profile={profile}", case.build(profile=profile), q, k, v)
    if case.cls.declared.causal_form and case.build().traits().cross_form:
        refused("with causal=True", case.build(causal=True), q, k, v)


def matrix(case: Case) -> None:
    """forward is the matrix times v, at any length, under every profile; a random object is drawn
    once for both."""
    attention = case.build()
    for n, kind in ((37, None), (37, "prefix"), (37, "scatter"), (1, "full"), (17, "scatter")):
        q, k, v, x = inputs(n)
        m = None if kind is None else mask_of(kind, n)
        if not attention.traits().has_matrix:
            refused("no implied attention matrix", attention.matrix, q, k, m, x)
            return
        state = attention.get_extra_state()
        out = attention(q, k, v, m, x)
        attention.set_extra_state(state)
        A = attention.matrix(q, k, m, x)
        hold(A.shape == (2, q.shape[1], n, n), f"matrix() gives {tuple(A.shape)}")
        if m is not None and case.profile == "strict":
            unseen = A.masked_select(~m[:, None, None, :])
            hold(bool((unseen == 0).all()), "padded keys have weights in matrix()")
        gap = difference(A @ v, out, m)
        size = max(1, float(out.detach().abs().max()))
        what = f"matrix() times v and the output differ by {gap:.1g}"
        hold(gap < EXACT * size, f"{what}: mend one, or declare has_matrix=False")


def every_profile(case: Case) -> None:
    """Every profile that it declares runs, and no other."""
    if case.options:  # which may exclude each other under another profile
        return
    q, k, v, x = inputs(32)
    for profile in ("strict", "published", "official"):
        attention = case.build(profile=profile)
        hold(attention.profile in case.cls.profiles, f"{profile} runs as {attention.profile}")
        for m in (None, mask_of("prefix", 32)):
            finite = bool(attention(q, k, v, m, x).isfinite().all())
            hold(finite, f"profile={profile} gives numbers that are not finite")
    refused("profile must be one of strict, published, official", case.build, profile="lenient")
