"""What `lra bench attention`, `luna` and `convert` measure, by length."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import luna
from lra.bench.measure import Benchmark, Calls
from luna.convert.host import transformers
from luna.convert.swap import convert
from luna.feature_maps.options import Evaluate

HEADS, WIDTH = 2, 32
TOKENS = 16  # generated behind a prompt
# Layers, heads and width of real models; weights are random, with positions for every length.
MODELS = {"minilm": (6, 12, 384), "bert-base": (12, 12, 768), "gpt2": (12, 12, 768)}


def attention_benchmark(options: Namespace) -> Benchmark:
    words = options.methods or [*luna.names(causal=options.causal), "softmax@published"]
    notes = [
        f"batch {options.batch}, {HEADS} heads of {WIDTH}, float32, no mask",
        "softmax is torch's fused kernel, softmax@published stores the attention matrix",
    ]
    if mixers := [word for word in words if luna.registry.mixes(word.partition("@")[0])]:
        notes += [f"with projections of their own, which the others have not: {', '.join(mixers)}"]
    if options.causal:
        notes += ["token: `step` behind a prompt of n; state: kept in memory between two tokens"]
    return Benchmark(
        stem="causal" if options.causal else "attention",
        title=f"Every {'causal ' * options.causal}attention alone, by length",
        notes=notes,
        cases={
            word: partial(attention_calls, word, batch=options.batch, causal=options.causal)
            for word in words
        },
        base="softmax",
    )


def luna_benchmark(options: Namespace) -> Benchmark:
    used = luna.build("luna", n_heads=HEADS, head_dim=WIDTH, max_len=64).evaluation(options.device)
    names = {how: f"luna, {how}" for how in get_args(Evaluate)} | {"dense": "luna, the listing"}
    ways: dict[str, dict[str, Any]] = {"luna": {}}
    ways |= {names[how]: {"evaluate": how} for how in names if how not in ("auto", used)}
    ways |= {f"luna, {how}": {"nonneg": how} for how in ("softplus", "exp")}
    build = partial(attention_calls, batch=options.batch)
    return Benchmark(
        stem="luna",
        title="LUNA's evaluations",
        notes=[
            f"batch {options.batch}, {HEADS} heads of {WIDTH}, M = L = 8, hidden 64, float32",
            f"luna is evaluated as {used} here, unless its name says otherwise",
            "linear, D = 64: with queries and keys as wide as LUNA's features",
        ],
        cases={
            **{name: partial(build, "luna", **way) for name, way in ways.items()},
            "linear": partial(build, "linear"),
            "linear, D = 64": partial(build, "linear", width=64),
            "softmax": partial(build, "softmax"),
        },
        base="luna",
    )


def attention_calls(
    method: str,
    n: int,
    device: torch.device,
    *,
    batch: int,
    width: int = WIDTH,  # of queries and keys
    causal: bool = False,
    **options: Any,
) -> Calls:
    """Build a method, NAME or NAME@PROFILE, its inputs and what is done with them: q, k, v, or
    hidden states for a mixer."""
    torch.manual_seed(0)
    name, _, profile = method.partition("@")
    options |= {"profile": profile or "strict", "max_len": n + causal, "n_heads": HEADS}
    options |= {"causal": True} if causal else {}  # not every method has this option
    built: Any
    others: list[Any] = []
    with device:
        x = torch.randn(batch, n, HEADS * width)
        if luna.registry.mixes(name):
            built = luna.mixer(name, d_model=HEADS * width, **options)
            inputs = [x.requires_grad_()]
        else:
            built = luna.build(name, head_dim=width, **options)
            shapes = [(batch, HEADS, n, d) for d in (width, width, WIDTH)]
            inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
            others = [None, x]
        gradient = torch.randn_like(inputs[-1])

    @torch.no_grad()
    def forward() -> Tensor:
        return built.eval()(*inputs, *others)

    def train() -> None:
        built.train()(*inputs, *others).backward(gradient)
        for leaf in (*inputs, *built.parameters()):  # here, so that the next call frees none
            leaf.grad = None

    calls: Calls = {"forward": forward, "train": train}
    if causal:
        with torch.no_grad():
            state, _ = built.eval().steps(None, *inputs)
        token = [t[..., -1, :].detach() for t in inputs]
        calls["token"] = torch.no_grad()(partial(built.step, state, *token))
        calls["state_bytes"] = float(
            sum(t.nbytes for t in tree_leaves(state) if torch.is_tensor(t))
        )
    return calls


def convert_benchmark(options: Namespace) -> Benchmark:
    name, batch = options.geometry, options.batch
    transformers()  # stops with a sentence if it is not installed
    layers, heads, width = MODELS[name]
    return Benchmark(
        stem=f"convert-{name}",
        title=f"{name}, converted, beside softmax",
        notes=[
            f"random weights: {layers} layers, {heads} heads of {width // heads}; batch {batch}, "
            "float32, no gradients; softmax is torch's fused kernel",
            f"generate, of a decoder: {TOKENS} tokens behind a prompt of n, the prompt included",
        ],
        cases={
            method: partial(model_calls, name, batch, method)
            for method in ["softmax", *options.methods]
        },
        base="softmax",
    )


def model_calls(geometry: str, batch: int, method: str, n: int, device: torch.device) -> Calls:
    layers, heads, width = MODELS[geometry]
    library, decoder = transformers(), geometry == "gpt2"
    sizes: dict[str, Any] = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_size": width,
        "max_position_embeddings": n + TOKENS,
        "attn_implementation": "sdpa",
    }
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
    calls: Calls = {"forward": torch.no_grad()(partial(model, ids))}
    if decoder:
        exactly = {"min_new_tokens": TOKENS, "max_new_tokens": TOKENS, "do_sample": False}
        calls["generate"] = partial(model.generate, ids, pad_token_id=0, **exactly)
    return calls
