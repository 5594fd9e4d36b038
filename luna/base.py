"""What the author of an attention or a mixer imports: the contract and its helpers, from one place.

from luna.base import Attention, LunaError, Mask, Paper, Slot, register
"""

from __future__ import annotations

from luna.contract import Attention, Redrawn, Slot
from luna.errors import LunaError, at_least, nearest, positive
from luna.method import PROFILES, Method, _classes, register
from luna.mixing import Mixer, Place
from luna.tensors import Mask, autocast_off, uncompiled, zero_padding
from luna.traits import KEY_BIAS, AttentionTraits, Paper, Rate, Traits

__all__ = [
    "KEY_BIAS",
    "PROFILES",
    "Attention",
    "AttentionTraits",
    "LunaError",
    "Mask",
    "Method",
    "Mixer",
    "Paper",
    "Place",
    "Rate",
    "Redrawn",
    "Slot",
    "Traits",
    "_classes",
    "at_least",
    "autocast_off",
    "nearest",
    "positive",
    "register",
    "uncompiled",
    "zero_padding",
]
