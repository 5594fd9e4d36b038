"""LUNA and the methods it is compared with, behind two contracts: of q, k, v (luna/contract.py) and
of hidden states (luna/mixing.py).

import luna

luna.names()
attention = luna.build("luna", n_heads=2, head_dim=32, max_len=1024, M=8, L=8)
out = attention(q, k, v, mask)  # all (B, H, n, d); mask (B, n), True = real token

Each name is imported on first use, so `import luna` alone does not import torch.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from luna.base import Attention, LunaError, Mixer, Paper, Place, Slot, register
    from luna.convert import convert as linearize
    from luna.drop_in import torch_attention
    from luna.registry import build, get, mixer, names, options

__version__ = "0.2.0"
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
    "torch_attention",
]

_PLACES = dict.fromkeys(("build", "get", "mixer", "names", "options"), "luna.registry")
_PLACES["torch_attention"] = "luna.drop_in"


def __getattr__(name: str) -> Any:
    if name == "linearize":
        from luna.convert import convert

        return convert
    if name in __all__:
        return getattr(importlib.import_module(_PLACES.get(name, "luna.base")), name)
    if importlib.util.find_spec(f"luna.{name}"):  # such as luna.registry
        return importlib.import_module(f"luna.{name}")
    raise AttributeError(f"module 'luna' has no attribute {name!r}")
