"""Digests of facts: an edited number is noticed. They are no signatures (SECURITY.md)."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def compact(facts: Any) -> str:
    return json.dumps(facts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def digest(facts: dict[str, Any]) -> str:
    """Hash facts, which may hold the hash themselves."""
    content = {key: value for key, value in facts.items() if key != "digest"}
    return hashlib.sha256(compact(content).encode()).hexdigest()[:16]


def check_digest(facts: dict[str, Any]) -> None:
    if facts.get("digest") != digest(facts):
        raise ValueError("its digest does not fit: it was edited, or is of an earlier version")
