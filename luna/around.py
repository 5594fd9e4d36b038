"""What may stand around an attention, whichever it is: the options that every run has.

    q, k, v = short_conv(projections of x)
    out     = gate(head_norm(attention(q, k, v) + dwc(v)))

and `normalise` says what divides the sums inside an attention with a feature map. All are off by
default: a comparison in which one method alone has them says nothing about its core.

Their modules are in luna/local.py and luna/surround.py, luna/qkv.py puts them in place. This file
needs no torch, so that settings are checked before torch is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from luna.errors import LunaError

Dwc = Literal["none", "conv1d", "conv2d", "conv1d_long"]
Normalise = Literal["sum", "abs", "rms"]
Gate = Literal["none", "full", "low_rank"]


@dataclass(frozen=True, kw_only=True)
class Around:
    """Each at the value that says nothing, unless a run chose another."""

    dwc: Dwc = "none"  # a convolution of the values, added to the outputs
    normalise: Normalise = "sum"  # what divides sums over features (luna/linear.py)
    short_conv: int = 0  # tokens of a convolution of q, k and v; 0: none
    head_norm: bool = False  # a norm of each head's outputs
    gate: Gate = "none"  # of the outputs, by the hidden states

    def __post_init__(self) -> None:
        for name, choices in (("dwc", Dwc), ("normalise", Normalise), ("gate", Gate)):
            *others, last = get_args(choices)
            self._hold(
                name, getattr(self, name) in [*others, last], f"{', '.join(others)} or {last}"
            )
        tokens = type(self.short_conv) is int and 0 <= self.short_conv < 2**31
        self._hold("short_conv", tokens, "a whole number of tokens, 0 for none")
        self._hold("head_norm", type(self.head_norm) is bool, "true or false")

    def _hold(self, name: str, allowed: bool, words: str) -> None:
        if not allowed:
            value = getattr(self, name)
            raise LunaError(f"{name}={value} is out of range: it must be {words}")

    @classmethod
    def split(cls, options: Mapping[str, Any]) -> tuple[Around, dict[str, Any]]:
        """What of a run's options stands around its attention, and the others."""
        names = {field.name for field in fields(cls)}
        around = {key: value for key, value in options.items() if key in names}
        return cls(**around), {key: options[key] for key in options if key not in names}

    def chosen(self) -> dict[str, Any]:
        """Those that are not at their default."""
        usual = asdict(Around())
        return {key: value for key, value in asdict(self).items() if value != usual[key]}
