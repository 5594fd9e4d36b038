"""Fixtures of the tool's tests that the study's tests use too."""

from __future__ import annotations

from ..lra.conftest import clone
from ..lra.figures.conftest import drawn

__all__ = ["clone", "drawn"]
