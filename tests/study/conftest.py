"""Fixtures of the tool's tests that the study's tests use too."""

from __future__ import annotations

from ..lra.conftest import clone

__all__ = ["clone"]
