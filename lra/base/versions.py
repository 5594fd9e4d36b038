"""Declared versions: which numbers the code computes, as integers that are raised by hand.

Whoever changes the numbers of a method raises `numerics` in its class; whoever changes those of a
part that all runs share raises its integer here. tests/golden notices a change that was not
declared. An edit that moves no number, such as a clearer message, raises nothing.

A method or a part outside `luna` and `lra` declares nothing: its source is hashed (code.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ATTENTION = "attention"  # the key of a method's own integer
STACK = "stack"  # the method that is one of its own for each layer


@dataclass(frozen=True)
class Part:
    """A part of the code that runs share."""

    numerics: int
    modules: tuple[str, ...]  # where it is, and what of them is of `luna` or of `lra.model`


PARTS = {
    "backbone": Part(1, ("lra.model.build",)),
    "embedding": Part(1, ("lra.model.embedding", "lra.model.rotary")),
    # What stands around an attention: projections, local branch, convolution, norm and gate
    "projections": Part(
        1,
        (
            "luna.around",
            "luna.qkv",
            "luna.heads",
            "luna.local",
            "luna.surround",
            "luna.dropout",
        ),
    ),
    "optimizer": Part(1, ("lra.training.optimizer", "lra.training.sam")),
    "schedule": Part(1, ("lra.training.schedule",)),
    # The loss and its mask, gradients, clipping, averages of weights
    "step": Part(
        1,
        (
            "lra.training.module",
            "lra.training.memory",
            "lra.training.meter",
            "lra.training.process",
            "lra.training.trainer",
            "lra.training.callbacks",
            "lra.metrics.target",
            "lra.metrics.classes",
        ),
    ),
    "data": Part(1, ("lra.data.arrays", "lra.data.loader", "lra.data.device")),  # splits, order
    "selection": Part(1, ("lra.training.checkpoints",)),
    "seeding": Part(1, ("lra.training.run",)),
    "scoring": Part(
        1,
        (
            "lra.training.record",
            "lra.metrics.metric",
            "lra.metrics.numbers",
            "lra.metrics.labels",
            "lra.metrics.language",
        ),
    ),
    "pretraining": Part(1, ("lra.model.pretrain",)),
    "conversion": Part(1, ("luna.convert.pipeline",)),
}
# Settings of model and protocol that came after the first runs, by their dotted names, at the value
# that those had: it is the default, and there a setting is no part of a run. Of a method's options
# the class says so, luna.base.Method.added.
ADDED: dict[str, Any] = {
    "protocol.style.input": "ids",
    "protocol.style.norm": "layer",
    "protocol.style.norm_place": "before",
    "protocol.style.mlp": True,
    "protocol.style.hidden_layers": 1,
    "protocol.style.tied_dropout": False,
    "protocol.style.embedding_dropout": True,
    "protocol.recipe.rates": [],
    "protocol.recipe.undecayed": [],
    "pretrain.recipe.rates": [],
    "pretrain.recipe.undecayed": [],
}
PRETRAINING, CONVERSION = "pretraining", "conversion"  # only some runs have one
OF_CONVERSION = (CONVERSION,)


def of_training(*, pretrained: bool) -> tuple[str, ...]:
    """The parts of a training run."""
    apart = {CONVERSION} if pretrained else {CONVERSION, PRETRAINING}
    return tuple(name for name in PARTS if name not in apart)


def numerics_of(attention: str | Mapping[str, Any], parts: Iterable[str]) -> dict[str, int]:
    """The integers of a run: that of its method, if the method is of `luna`, and of its parts. Of a
    stack each `numerics` above 1 counts, as in `Method.version`."""
    import luna  # not before: it imports torch

    methods = [attention] if isinstance(attention, str) else methods_of(attention)
    found = map(luna.get, methods)
    versions = [method.version() for method in found if is_ours(method.__module__)]
    declared = {ATTENTION: 1 + sum(version - 1 for version in versions)} if versions else {}
    return declared | {name: PARTS[name].numerics for name in parts}


def methods_of(attention: Mapping[str, Any]) -> list[str]:
    """The methods of a run: its attention, and those of a stack's layers, each once."""
    entries = [entry["name"] for entry in layers_of(attention)]
    return [*dict.fromkeys([attention["name"], *entries])]


def layers_of(attention: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of a stack, in the settings of a run; none of any other method, which may have
    an option of this name."""
    return list(attention.get("layers", ())) if attention["name"] == STACK else []


def is_ours(module: str) -> bool:
    """Whether a module is the project's, whose numbers have declared versions."""
    return module.partition(".")[0] in ("luna", "lra")


def without_added(settings: dict[str, Any]) -> dict[str, Any]:
    """Leave out of settings what came later and is as it was before."""
    import luna  # not before: it imports torch

    attention = settings["attention"]
    for method in (attention, *layers_of(attention)):
        for option, value in luna.get(method["name"]).added.items():
            if option in method and method[option] == value:
                del method[option]
    later = ADDED
    for place, value in later.items():
        *groups, name = place.split(".")
        group = settings
        for key in groups:
            group = group.get(key) or {}
        if name in group and group[name] == value:
            del group[name]
    return settings


def raised(numerics: Mapping[str, int]) -> dict[str, int]:
    """Those above 1, which alone are part of an identity: so runs from before a part was declared
    are those of its first version."""
    return {name: n for name, n in sorted(numerics.items()) if n > 1}


def earlier(numerics: Mapping[str, int]) -> list[tuple[str, dict[str, int]]]:
    """Versions that differ from these in one integer, which is lower, the latest first; and its
    name."""
    return [
        (name, {**numerics, name: n})
        for name, now in numerics.items()
        for n in range(now - 1, 0, -1)
    ]
