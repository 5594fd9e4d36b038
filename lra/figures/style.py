"""Colours, markers and names, the same in every figure.

The colours are Okabe and Ito's and Tol's; simulated for colour-blind readers, any two of them stay
at least 20 apart in Lab. Their green is left out: those readers take it for LUNA's magenta.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LUNA, SOFTMAX, OTHERS, INK, NOTE = "#c2185b", "#1d2126", "#b4b4b4", "0.15", "0.4"
PALETTE = ("#0072b2", "#e69f00", "#56b4e9", "#332288", "#8a6d00")
MARKERS = ("s", "^", "v", "P", "X")
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)))
BOLD = ("luna", "softmax")  # methods drawn thick and named in bold letters
COLOURED = ("linear", "hedgehog", "nystrom", "performer", "cosformer")  # of many methods
WORDS = {
    "nonneg": {"True": "relu outputs", "False": "signed outputs", "exp": "exponential outputs",
               "softplus": "softplus outputs"},
    "share": {"head": "a map per head", "layer": "a map per layer"},
    "dwc": {"none": "no local branch"},
}  # fmt: skip
NAMES = {"lr": "rate", "stage1_lr": "rate", "hidden": "width", "dwc": "local branch"}


def styles_of(methods: Sequence[str]) -> list[dict[str, Any]]:
    """Colour and marker of each method: LUNA and softmax have their own, those of COLOURED too; if
    there are few methods, the others take the free colours, else they are grey."""
    names = dict.fromkeys(name for name in methods if name not in BOLD)
    coloured = dict(zip(COLOURED, range(len(PALETTE)), strict=True))
    if len(names) <= len(PALETTE):
        free = [i for i, name in enumerate(COLOURED) if name not in names]
        coloured |= zip((name for name in names if name not in COLOURED), free, strict=False)
    return [_style(method, coloured.get(method)) for method in methods]


def _style(method: str, place: int | None) -> dict[str, Any]:
    if method in BOLD:
        colour, marker = (LUNA, "D") if method == "luna" else (SOFTMAX, "o")
        return {"color": colour, "marker": marker, "linewidth": 2.2, "zorder": 4}
    if place is None:
        return {"color": OTHERS, "marker": ".", "linewidth": 0.8, "zorder": 2}
    colour, marker = PALETTE[place], MARKERS[place]
    return {"color": colour, "marker": marker, "linewidth": 1.3, "zorder": 3}


def in_words(options: Mapping[str, Any]) -> str:
    """`M = 8, signed outputs`"""
    texts = []
    for key, value in options.items():
        equals = " = " if len(key) == 1 else " "
        plain = f"{NAMES.get(key, key)}{equals}{value}"
        texts.append(WORDS.get(key, {}).get(str(value), plain))
    return ", ".join(texts)
