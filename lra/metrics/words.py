"""A score in words; without numpy, because `lra status` shows scores too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def text_of(metric: Mapping[str, Any], score: float) -> str:
    """Spell one score, from the facts that a record has of its metric: `41.05 %`."""
    return f"{score:.{metric['digits'] + 1}f} {metric['unit']}".rstrip()
