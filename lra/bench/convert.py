"""`lra bench convert`: a converted model beside its softmax original, by length."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Any

import torch

from lra.base.config import UserError, nearest
from lra.bench.measure import BenchCase, Benchmark, Calls
from luna.convert.host import transformers
from luna.convert.swap import convert

TOKENS = 16  # generated behind a prompt
# Layers, heads and width of real models; weights are random, with positions for every length.
MODELS = {"minilm": (6, 12, 384), "bert-base": (12, 12, 768), "gpt2": (12, 12, 768)}


def benchmark(options: Namespace) -> Benchmark:
    name = options.geometry
    if name not in MODELS:
        raise UserError(f"unknown --geometry '{name}'{nearest(name, MODELS)}")
    transformers()  # stops with a sentence if it is not installed
    layers, heads, width = MODELS[name]
    return Benchmark(
        stem=f"convert-{name}",
        title=f"{name}, converted, beside softmax",
        notes=[
            f"random weights: {layers} layers, {heads} heads of {width // heads}; batch "
            f"{options.batch}, float32, no gradients; softmax is torch's fused kernel",
            f"generate: {TOKENS} tokens behind a prompt of n, the prompt included",
        ],
        cases=[
            BenchCase(name=method, build=partial(model_calls, name, options.batch, method))
            for method in dict.fromkeys(["softmax", *options.methods])
        ],
        base="softmax",
    )


def model_calls(geometry: str, batch: int, method: str, n: int, device: torch.device) -> Calls:
    layers, heads, width = MODELS[geometry]
    library, decoder = transformers(), geometry == "gpt2"
    sizes: dict[str, Any] = {
        "num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": width,
        "max_position_embeddings": n + TOKENS, "attn_implementation": "sdpa",
    }  # fmt: skip
    torch.manual_seed(0)
    if decoder:
        model = library.GPT2LMHeadModel(library.GPT2Config(**sizes))
    else:
        config = library.BertConfig(**sizes, intermediate_size=4 * width)
        model = library.BertForSequenceClassification(config)
    if method != "softmax":
        name, _, profile = method.partition("@")
        model = convert(model, name, profile=profile or "strict", inplace=True)
    model, ids = model.to(device).eval(), torch.randint(1, 30_000, (batch, n), device=device)
    exactly = {"min_new_tokens": TOKENS, "max_new_tokens": TOKENS, "do_sample": False}
    calls = {"forward": partial(model, ids)}
    if decoder:
        calls["generate"] = partial(model.generate, ids, pad_token_id=0, **exactly)
    return {name: torch.no_grad()(call) for name, call in calls.items()}
