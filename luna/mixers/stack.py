"""A stack: each layer of a network has a method of its own, such as three of a delta rule and one
of softmax, as in Kimi Linear (Kimi Team 2025, https://arxiv.org/abs/2510.26692).

    layers = [gated_deltanet, gated_deltanet, gated_deltanet, softmax]

Layer i has the entry i of the list, which begins anew behind its end. An entry is a name, or a name
with options, {name: gated_deltanet, negative: true}, also of what stands around an attention.
"""

from __future__ import annotations

from typing import Any

from luna.base import LunaError, Paper, Place, Traits, register
from luna.mixing import Layered

USUAL = ["gated_deltanet", "softmax"]


@register("stack")
class Stack(Layered):
    title = "Stack"
    family = "stack"
    paper = Paper(
        "Kimi Linear: An Expressive, Efficient Attention Architecture",
        2025,
        "https://arxiv.org/abs/2510.26692",
    )
    complexity = "O(those of its layers)"
    declared = Traits(causal_form=True)  # a method of a layer refuses what it has not

    def __init__(self, place: Place, *, layers: list[Any] = USUAL):
        raise LunaError("a stack is the method of each layer: build it by luna.mixer('stack', ...)")

    @classmethod
    def of_layer(cls, layer: int, layers: list[Any] | None = None) -> dict[str, Any]:
        layers = USUAL if layers is None else layers
        entries = [{"name": entry} if isinstance(entry, str) else entry for entry in layers]
        for entry in entries or [None]:
            if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                raise LunaError(
                    "stack.layers must be a list of methods, each a name or {name: .., option: ..},"
                    f" got {layers}"
                )
            if entry["name"] == cls.name:
                raise LunaError("a stack cannot have a stack among its layers")
        return dict(entries[layer % len(entries)])
