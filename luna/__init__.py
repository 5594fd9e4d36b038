"""LUNA and the methods it is compared with, behind two contracts: of q, k, v (luna/contract.py) and
of hidden states (luna/mixing.py).

import luna

luna.names()
attention = luna.build("luna", n_heads=2, head_dim=32, max_len=1024, M=8, L=8)
out = attention(q, k, v, mask)  # all (B, H, n, d); mask (B, n), True = real token
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from luna.base import Attention, LunaError, Mixer, Paper, Place, Slot, register
from luna.registry import build, get, mixer, names, options

if TYPE_CHECKING:
    from luna.convert import convert as linearize

__version__ = "0.1.0"
__all__ = [
    "Attention",
    "LunaError",
    "Mixer",
    "Paper",
    "Place",
    "Slot",
    "build",
    "get",
    "linearize",
    "mixer",
    "names",
    "options",
    "register",
]


def __getattr__(name: str) -> Any:
    if name == "linearize":  # imported on first use: `import luna` costs torch alone
        from luna.convert import convert

        return convert
    raise AttributeError(f"module 'luna' has no attribute {name!r}")
