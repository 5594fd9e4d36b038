"""The causal form: in parallel, as a matrix, and streamed it is what prefixes give."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from luna.testing.cases import EXACT, Case, H, N, difference, hold, inputs, mask_of, width
from luna.testing.shapes import refused
from luna.testing.subject import Subject, tokens


def causal(subject: Subject) -> None:
    """A causal row is what its prefix gives, whole, streamed token by token, or after a prompt."""
    declared = subject.case.cls.declared.causal_form
    if not declared:
        refused("has no causal form", subject.build, causal=True)
        refused("causal=True", subject.stream, subject.build(), None, tokens(subject.inputs(), [0]))
        return
    method, whole = subject.build(causal=True), subject.build()
    share_parameters(whole, method)
    given = subject.inputs()
    for m in (None, mask_of("scatter")):  # whose first token is padding
        expected = torch.stack([last_of_prefix(subject, whole, given, m, i) for i in range(N)], -2)
        gap = difference(subject.run(method, given, m), expected)
        what = "causal=True and the last rows of prefixes"
        hold(gap < EXACT, f"{what} differ by {gap:.1g}: mend it, or declare causal_form=False")
        real = None if m is None else m | (torch.arange(N) >= 20)
        streamed(subject, method, given, real)
        if m is None:
            gap = difference(one_by_one(subject, method, given), expected)
            hold(gap < EXACT, f"step() and causal=True differ by {gap:.1g}")


def share_parameters(whole: Any, causal: Any) -> None:
    """Give the causal form the parameters of the other one. That one may have more of them, such as
    a kernel for the other direction, and then the two do not draw the same numbers."""
    given = dict(whole.named_parameters())
    for name, parameter in causal.named_parameters():
        shape = given[name].shape if name in given else None
        hold(
            shape == parameter.shape,
            f"parameter '{name}' has the shape {tuple(parameter.shape)} with causal=True and "
            f"{shape and tuple(shape)} without: the causal form takes a part of the other's "
            "parameters, under their names",
        )
        parameter.data.copy_(given[name])


def last_of_prefix(subject: Subject, whole: Any, given: list[Tensor], m: Any, i: int) -> Tensor:
    part = tokens(given, slice(i + 1))
    return subject.run(whole, part, None if m is None else m[:, : i + 1])[..., -1, :]


def one_by_one(subject: Subject, method: Any, given: list[Tensor]) -> Tensor:
    state, out = None, []
    for i in range(N):
        state, o = subject.stream(method, state, tokens(given, slice(i, i + 1)))
        out.append(o)
    return torch.cat(out, -2)


def streamed(subject: Subject, method: Any, given: list[Tensor], m: Tensor | None) -> None:
    """A prompt at once, then the rest; no padding may stand after a state."""
    prompt, rest = (tokens(given, part) for part in (slice(20), slice(20, N)))
    state, before = subject.stream(method, None, prompt, None if m is None else m[:, :20])
    state, after = subject.stream(method, state, rest)
    gap = difference(torch.cat([before, after], -2), subject.run(method, given, m), m)
    hold(gap < EXACT, f"steps() after a prompt and causal=True differ by {gap:.1g}")
    words = "cannot stream padding after a state"
    refused(words, subject.stream, method, state, rest, mask_of("scatter")[:, 20:])


def future(subject: Subject) -> None:
    """Huge later tokens change no bit of an earlier row, and get no gradient from it."""
    if not subject.case.cls.declared.causal_form:
        return
    method, t = subject.build(causal=True), 20
    given = [tensor.requires_grad_() for tensor in subject.inputs()]
    later = [torch.cat([a[..., :t, :], 30 * a[..., t:, :]], -2) for a in given]
    chunks = (8, 64) if hasattr(method, "chunk") else (None,)
    for chunk in chunks:
        if chunk is not None:
            method.chunk = chunk
        out = subject.run(method, given)
        gap = difference(subject.run(method, later)[..., :t, :], out[..., :t, :])
        advice = "" if gap > EXACT else "; if an FFT over all tokens rounds them in, work in chunks"
        hold(gap == 0, f"later tokens change earlier rows by {gap:.1g}: it is not causal{advice}")
        row = out[..., t, :].sum()
        gradients = torch.autograd.grad(row, given, allow_unused=True)
        read = [g for g in gradients if g is not None]
        for gradient in read:
            hold(
                bool((gradient[..., t + 1 :, :] == 0).all()), "a row has gradients of later tokens"
            )
        value = gradients[0] if subject.as_mixer else gradients[2]
        reached = value is not None and bool((value[..., : t + 1, :] != 0).any(-1).any())
        hold(reached, "a causal row has no gradient of the tokens before it")


# ---------------------------------------------------------------------- attentions alone


def chunks(case: Case) -> None:
    """In chunks of any length, with values of another width, and as a matrix."""
    if not case.cls.declared.causal_form:
        return
    attention, whole = case.build(causal=True), case.build()
    q, k, v, x = inputs(d_v=width(attention, 5))
    for m in (None, mask_of("scatter")):
        prefixes = (
            whole(
                *(t[:, :, : i + 1] for t in (q, k, v)),
                None if m is None else m[:, : i + 1],
                x[:, : i + 1],
            )
            for i in range(N)
        )
        expected = torch.stack([out[:, :, -1] for out in prefixes], 2)
        for chunk in (1, 7, 16, N, 128):
            attention.chunk = chunk  # type: ignore[assignment]
            gap = difference(attention(q, k, v, m, x), expected)
            hold(gap < EXACT, f"in chunks of {chunk} the causal form differs by {gap:.1g}")
        if attention.traits().has_matrix:
            A = attention.matrix(q, k, m, x)
            hold(bool((A.triu(1) == 0).all()), "the causal matrix() has weights of later tokens")
            gap = difference(A @ v, expected)
            hold(gap < EXACT, f"the causal matrix() times v differs by {gap:.1g}")


def states(case: Case) -> None:
    """A state belongs to its tokens, and that of a feature map is as small as its features."""
    from luna.linear import KernelAttention

    if not case.cls.declared.causal_form:
        return
    attention = case.build(causal=True)
    q, k, v, x = (t[..., :1, :] for t in inputs(d_v=width(attention, 5)))
    reads = attention.traits().needs_x
    state, _ = attention.steps(None, q, k, v, **({"x": x} if reads else {}))
    if isinstance(attention, KernelAttention):
        numbers = sum(part[0].numel() for part in state if isinstance(part, Tensor))
        most = H * (attention.feature_dim + 1) * (v.shape[-1] + 1)
        hold(
            numbers <= most, f"a state has {numbers} numbers an example, at most {most} are needed"
        )
    token = [t[:, :, 0] for t in (q, k, v)]
    hidden = [x[:, 0]] if reads else []
    one = [t[:1] for t in (*token, *hidden)]
    refused("this state does not belong to these tokens", attention.step, state, *one)
    refused("q must be", attention.step, state, token[0][..., :8], *token[1:], *hidden)
    refused("q must be", attention.step, state, *(t[:, :1] for t in token), *hidden)
