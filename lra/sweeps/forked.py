"""What the runs of a sweep are forked from: all of a run is imported and its code is hashed, so
that none of a thousand runs does either. It starts no thread, because a fork would lack it."""

from __future__ import annotations

from lra.base import code
from lra.base.versions import PARTS
from lra.training.run import train

__all__ = ["train"]

for part in PARTS.values():
    code.contents_of(*part.modules)  # keeps the syntax trees, which every attention shares
