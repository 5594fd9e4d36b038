"""Where the package and its configs lie."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
# A wheel carries the repository's configs/ inside the package (pyproject.toml).
CONFIGS = next(f for f in (PACKAGE / "configs", PACKAGE.parent / "configs") if f.is_dir())
