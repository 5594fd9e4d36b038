"""Padding, the batch, and what is declared of tokens: one suite for attentions and mixers."""

from __future__ import annotations

import torch
from torch import Tensor

from luna.testing.cases import (
    EXACT,
    MASKS,
    VISIBLE,
    Case,
    as_declared,
    difference,
    hold,
    inputs,
    longer,
    mask_of,
    over,
)
from luna.testing.subject import Subject, mixed, tokens

N = 37


def padding(subject: Subject) -> None:
    """Garbage or NaN in appended padding moves no real row, and padded rows come out 0."""
    method, given = subject.build(), subject.inputs()
    for kind in ("prefix", "scatter"):
        m = mask_of(kind)
        out = subject.run(method, given, m)
        for extra, value in ((1, None), (5, float("nan")), (50, None)):
            wide, *padded = longer(extra, m, *given, value=value)
            again = subject.run(method, padded, wide)
            what = "NaN" if value is not None else "garbage"
            gap = difference(again[..., :N, :], out, m)
            hold(gap < EXACT, f"{what} in {extra} padded tokens moves real rows by {gap:.1g}")
            unseen = again.masked_select(~over(wide, again))
            hold(bool((unseen == 0).all()), "padded rows do not come out 0")


def content(subject: Subject) -> None:
    """What stands at padding changes nothing, wherever padding is."""
    method = subject.build()
    first, second = subject.inputs(), subject.inputs(seed=1)
    for kind in ("prefix", "scatter"):
        m = mask_of(kind)
        changed = mixed(m, first, [10 * t for t in second])
        gap = difference(subject.run(method, changed, m), subject.run(method, first, m))
        where = "behind the tokens" if kind == "prefix" else "between tokens"
        hold(gap < EXACT, f"what stands at padding {where} moves the output by {gap:.1g}")


def batch(subject: Subject) -> None:
    """An example alone, trimmed to its own length, equals the same one in a batch."""
    method, given = subject.build(), subject.inputs()
    for kind in MASKS:
        m = mask_of(kind)
        out = subject.run(method, given, m)
        for b in range(2):
            n = N if kind != "prefix" else int(m[b].sum())
            one = slice(b, b + 1)
            alone = subject.run(method, [t[one, ..., :n, :] for t in given], m[one, :n])
            gap = difference(alone, out[one, ..., :n, :])
            hold(gap < EXACT, f"examples of a batch meet: alone one differs by {gap:.1g}")


def holes(subject: Subject) -> None:
    """Padding between tokens is as if it were not there, or, if `holes_are_time` is declared, as
    time that passes between them."""
    method, given = subject.build(max_len=640), subject.inputs(640)
    real = torch.arange(640) % 3 != 0
    m = real.expand(2, -1)
    dense = subject.run(method, tokens(given, real))
    gap = difference(subject.run(method, given, m)[..., real, :], dense)
    declared = method.traits().holes_are_time
    what = "tokens with padding between them and the same tokens side by side"
    if declared:
        hold(gap > VISIBLE, f"{what} differ by {gap:.1g}: declare holes_are_time=False")
    else:
        hold(gap < EXACT, f"{what} differ by {gap:.1g}: declare holes_are_time=True")


def all_padded(subject: Subject) -> None:
    """An example without a token comes out 0, with finite gradients, whatever stands there."""
    method = subject.build().train()
    m = mask_of("prefix")
    m[1] = False
    given = [t.requires_grad_() for t in subject.inputs()]
    out = subject.run(method, [t.masked_fill(~over(m, t), float("nan")) for t in given], m)
    hold(bool((out[1] == 0).all()), "an example of padding alone does not come out 0")
    hold(
        bool(out.isfinite().all()), "an example of padding alone gives numbers that are not finite"
    )
    out.square().sum().backward()
    for t in given:
        if t.grad is not None:
            hold(bool(t.grad.isfinite().all()), "gradients of inputs with padding are not finite")
            unseen = t.grad.masked_select(~over(m, t))
            hold(bool((unseen == 0).all()), "padding gets a gradient")
    for name, p in method.named_parameters():
        finite = p.grad is None or bool(p.grad.isfinite().all())
        hold(finite, f"the gradient of {name} is not finite where an example is all padding")


def permutation(subject: Subject) -> None:
    """Permuting tokens permutes outputs if and only if `equivariant` is declared."""
    declared = subject.build().traits().equivariant
    n = 64 if declared else 640  # several blocks, windows of whatever ties it to positions
    method, given = subject.build(max_len=n), subject.inputs(n)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(5))
    for kind in MASKS:
        m = mask_of(kind, n)
        moved = subject.run(method, tokens(given, order), m[:, order])
        gap = difference(moved, subject.run(method, given, m)[..., order, :], m[:, order])
        as_declared("equivariant", declared, gap, "permuted tokens and permuted outputs")


# ---------------------------------------------------------------------- attentions alone


def heads(case: Case) -> None:
    """Heads do not reach each other unless `mixes_heads` is declared."""
    attention, m = case.build(), mask_of("scatter")
    q, k, v, x = inputs()
    scale = torch.tensor([1.0, 4.0]).view(1, 2, 1, 1)
    changed = attention(scale * q, scale * k, scale * v, m, x)
    gap = difference(changed[:, 0], attention(q, k, v, m, x)[:, 0])
    if attention.traits().mixes_heads:
        hold(gap > VISIBLE, "heads do not reach each other: declare mixes_heads=False")
    else:
        hold(gap < EXACT, f"a head moves another by {gap:.1g}: declare mixes_heads=True")


def constant(case: Case) -> None:
    """Constant values come out unchanged if and only if `row_stochastic` is declared."""
    attention = case.build()
    q, k, v, x = inputs(tame=True)
    same = v[:, :, :1].expand_as(v)
    declared = attention.traits().row_stochastic
    for kind in MASKS:
        m = mask_of(kind)
        gap = difference(attention(q, k, same, m, x), same, m)
        as_declared("row_stochastic", declared, gap, "constant values and their outputs")


def compares(case: Case) -> None:
    """Other keys give another output if and only if `compares` is declared."""
    attention = case.build()
    q, k, v, x = inputs(tame=True)
    gap = difference(attention(q, k.flip(2), v, None, x), attention(q, k, v, None, x))
    if attention.traits().compares:
        hold(gap > VISIBLE, "other keys change nothing: declare compares=False")
    else:
        hold(gap <= VISIBLE, f"other keys move the output by {gap:.1g}: declare compares=True")


def convex(case: Case) -> None:
    """Outputs are averages of the real values if and only if `convex` is declared."""
    attention = case.build()
    q, k, v, x = inputs()
    m = mask_of("scatter")
    facts = attention.traits()
    if facts.has_matrix and not facts.convex:  # outputs may hide what the weights show
        A = rows(attention.matrix(2 * q, 2 * k, m, x), m)
        average = bool(A.min() >= -VISIBLE and (A.sum(-1) - 1).abs().max() <= VISIBLE)
        hold(not average, "its weights are those of averages: declare convex=True")
        return
    low = v.masked_fill(~over(m, v), torch.inf).amin(2, keepdim=True)
    high = v.masked_fill(~over(m, v), -torch.inf).amax(2, keepdim=True)
    out = attention(q, k, v, m, x).detach()
    excess = float(rows(torch.maximum(low - out, out - high), m).max())
    if facts.convex:
        hold(
            excess < EXACT,
            f"outputs leave the range of the values by {excess:.1g}: declare convex=False",
        )
    else:
        hold(excess > VISIBLE, "outputs stay within the range of the values: declare convex=True")


def rows(t: Tensor, m: Tensor) -> Tensor:
    """The real rows (rows, H, e) of t (B, H, n, e)."""
    return t.transpose(1, 2)[m]


def scale(case: Case) -> None:
    """A constant factor on the features cancels if and only if `scale_free` is declared."""
    from luna.linear import KernelAttention

    attention = case.build()
    if not isinstance(attention, KernelAttention) or "n_layers" in case.options:
        return
    q, k, v, x = inputs(tame=True)
    m = mask_of("scatter")
    out = attention(q, k, v, m, x)
    features, calls = attention.features, []

    def scaled(q: Tensor, k: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        calls.append(1)
        phi_q, phi_k = features(q, k, mask)
        return 3 * phi_q, 0.5 * phi_k

    attention.features = scaled  # type: ignore[method-assign]
    attention.fusible = False  # type: ignore[assignment]  # not past the features
    gap = difference(attention(q, k, v, m, x), out, m)
    hold(bool(calls), "the features are not asked for")
    if attention.scale_free:
        hold(
            gap < EXACT,
            f"a factor on the features moves the output by {gap:.1g}: set scale_free = False",
        )
    else:
        hold(gap > VISIBLE, "a factor on the features changes nothing: set scale_free = True")
