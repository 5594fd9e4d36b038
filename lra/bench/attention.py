"""`lra bench attention`: every attention alone, by length."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import luna
from lra.bench.measure import BenchCase, Benchmark, Calls


def benchmark(options: Namespace) -> Benchmark:
    words = options.methods or [*luna.names(causal=options.causal), "softmax@published"]
    slot = {"batch": options.batch, "heads": options.heads, "head_dim": options.head_dim}
    build = partial(attention_calls, passes=options.passes, causal=options.causal, **slot)
    return Benchmark(
        stem="causal" if options.causal else "attention",
        title=f"Every {'causal ' * options.causal}attention alone, by length",
        notes=[
            "batch {batch}, {heads} heads of {head_dim}, float32, no mask".format(**slot),
            "softmax is torch's fused kernel, softmax@published stores the attention matrix",
            "token: `step` behind a prompt of n; state: what stays in memory between two tokens",
        ],
        cases=[
            BenchCase(name=word, build=partial(build, word.partition("@")[0],
                                               profile=word.partition("@")[2] or "strict"))
            for word in words
        ],
        base="softmax",
    )  # fmt: skip


def attention_calls(
    method: str,
    n: int,
    device: torch.device,
    *,
    passes: list[str],
    batch: int,
    heads: int,
    head_dim: int,
    value_dim: int | None = None,
    causal: bool = False,
    **options: Any,
) -> Calls:
    """Build an attention, its inputs and what is done with them."""
    torch.manual_seed(0)
    if causal:
        options["causal"] = True
    widths = (head_dim, head_dim, value_dim or head_dim)
    with device:
        attention = luna.build(method, n_heads=heads, head_dim=head_dim, max_len=n + causal,
                               **options)  # fmt: skip
        x = torch.randn(batch, n, heads * head_dim)
        q, k, v = (torch.randn(batch, heads, n, width, requires_grad=True) for width in widths)
        gradient = torch.randn_like(v)

    @torch.no_grad()
    def forward() -> Tensor:
        return attention.eval()(q, k, v, None, x)

    def train() -> None:
        attention.train()(q, k, v, None, x).backward(gradient)
        for leaf in (q, k, v, *attention.parameters()):  # here, so that the next call frees none
            leaf.grad = None

    calls: Calls = {"forward": forward, "train": train}
    calls = {name: calls[name] for name in passes}
    if causal:
        with torch.no_grad():
            state, _ = attention.eval().steps(None, q, k, v)
        token = [t[:, :, -1].detach() for t in (q, k, v)]
        calls["token"] = torch.no_grad()(partial(attention.step, state, *token))
        tensors = filter(torch.is_tensor, tree_leaves(state))
        calls["state_bytes"] = float(sum(t.nbytes for t in tensors))
    return calls
