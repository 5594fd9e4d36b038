"""`lra bench causal`: a prompt read at once, then one token after the other, by length."""

from __future__ import annotations

import itertools
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import luna
from lra.base.config import UserError
from lra.bench.cases import AttentionCase, methods_of
from lra.bench.rows import BenchResult
from lra.bench.sheet import Benchmark, SheetTable, by_length
from lra.bench.worker import BenchMeter, BenchRules

GROUP = "causal"
METHODS = ("luna", "linear", "softmax")
TOKENS = 16  # decoded per timed call
MEASURES = ("prefill_seconds", "decode_seconds", "peak_bytes", "state_bytes")
NOTES = (
    "prompt: `steps` of n tokens from the start, without gradients; its peak memory is the "
    "allocator's, without inputs and parameters",
    f"one more token: `step` behind a prompt of n, the mean of {TOKENS} tokens",
    "state: the numbers that stay between two tokens; of softmax the cache of keys and values",
)


def benchmark(options: Namespace) -> Benchmark:
    words = options.methods or METHODS
    slot = {key: getattr(options, key) for key in ("batch", "heads", "head_dim")}
    methods = methods_of(words)
    for method in methods:
        if not luna.get(method["method"]).causal_form:
            raise UserError(
                f"attention '{method['method']}' has no causal form; choose from "
                f"{', '.join(luna.names(causal=True))}"
            )
    described = "batch {batch}, {heads} heads of {head_dim}, float32, default options"
    return Benchmark(
        stem="causal",
        title="Causal attention: a prompt, then token by token",
        notes=[described.format(**slot), *NOTES],
        cases=[
            StreamCase(group=GROUP, lengths=options.lengths, alone=True, **slot, **method)
            for method in methods
        ],
        rules=BenchRules.of(options),
    )


@dataclass(frozen=True, kw_only=True)
class StreamCase(AttentionCase):
    """A prompt of n tokens, and tokens behind it."""

    def build(self, n: int, device: torch.device) -> luna.Attention:
        torch.manual_seed(0)
        with device:
            attention = luna.build(
                self.method, profile=self.profile, n_heads=self.heads, head_dim=self.head_dim,
                max_len=n + TOKENS, causal=True, **self.options,
            )  # fmt: skip
        return attention.eval()

    @torch.no_grad()
    def costs(self, n: int, meter: BenchMeter) -> dict[str, float]:
        attention = self.build(n, meter.device)
        q, k, v, _ = (t.detach() for t in self.inputs(n, meter.device))
        prompt = partial(attention.steps, None, q, k, v)
        costs = meter.seconds({"prefill_seconds": prompt}) | meter.peak_bytes(prompt)
        state, _ = prompt()
        tokens = [tuple(t[:, :, i % n] for t in (q, k, v)) for i in range(TOKENS)]

        def decode() -> None:
            now = state
            for token in tokens:
                now, _ = attention.step(now, *token)

        seconds = meter.seconds({"decode_seconds": decode})["decode_seconds"] / TOKENS
        return costs | {"decode_seconds": seconds, "state_bytes": float(sum(sizes(state)))}


def sizes(state: Any) -> Iterator[int]:
    """Bytes of every tensor in a state, which may hold others."""
    if isinstance(state, Tensor):
        yield state.numel() * state.element_size()
    elif isinstance(state, tuple | list):
        yield from itertools.chain.from_iterable(map(sizes, state))


def tables(result: BenchResult) -> Iterator[SheetTable]:
    for measure in MEASURES:
        yield by_length(result, GROUP, measure)
