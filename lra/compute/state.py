"""How much a method keeps of the tokens that it has seen: the state of its causal form, whether a
run reads in one direction or in both."""

from __future__ import annotations

import math
from typing import Any, cast

import torch

import luna
from lra.base.versions import STACK
from lra.compute.compiler import without_compiler
from lra.settings.experiment import Experiment
from lra.settings.run import Run
from luna.around import Around
from luna.errors import LunaError
from luna.qkv import Style

GROWS = "grows"  # more tokens leave more
STREAMED = 127, 255  # tokens after which it is measured: one before a block of 2^n is full


def state_of_run(run: Run | Experiment) -> int | str | None:
    """The state of a run's method, of its sizes and with its options. What stands around it is not
    counted: a short convolution keeps its last tokens beside that."""
    model = run.model
    around, own = Around.split(run.attention)
    own.pop("causal", None)
    return state_size(
        d_model=model.d_model,
        n_heads=model.n_heads,
        max_len=max(*STREAMED, run.protocol.data.pad_to) + 1,
        profile=run.protocol.profile,
        style=Style(qkv_dim=model.qkv_dim),
        normalise=around.normalise,
        **own,
    )


def state_size(name: str, *, n_heads: int, **settings: Any) -> int | str | None:
    """How many numbers a head keeps between tokens, measured on the method's own stream; GROWS
    where more tokens leave more, None without a causal form of these options. Numbers of all heads
    together are divided by them; of a stack it is the mean of its layers."""
    if not luna.get(name).declared.causal_form:
        return None
    if name == STACK:
        layers = settings.get("layers", luna.options(name)["layers"].default)
        places = ({"layer": i, "n_layers": len(layers)} for i in range(len(layers)))
        sizes = [_of_one(name, n_heads, settings | place) for place in places]
        if None in sizes or GROWS in sizes:
            return None if None in sizes else GROWS
        return math.ceil(sum(cast(list[int], sizes)) / len(sizes))
    return _of_one(name, n_heads, settings | {"n_layers": 1})


def _of_one(name: str, n_heads: int, settings: dict[str, Any]) -> int | str | None:
    """The state of one layer."""
    with torch.random.fork_rng(devices=[]), torch.no_grad(), without_compiler():
        try:
            mixer = luna.mixer(name, causal=True, n_heads=n_heads, **settings).eval()
            tokens = torch.zeros(1, max(STREAMED), settings["d_model"])
            few, many = (numbers(mixer.steps(None, tokens[:, :n])[0]) for n in STREAMED)
        except LunaError:  # these options have none
            return None
    return GROWS if many > few else math.ceil(many / n_heads)


def numbers(state: Any) -> int:
    """The real numbers in the tensors of a state; a complex one is two. The count of tokens and a
    mask are none."""
    if isinstance(state, (tuple, list)):
        return sum(map(numbers, state))
    if not hasattr(state, "is_floating_point"):
        return 0
    return int(state.numel() * (2 if state.is_complex() else state.is_floating_point()))
