"""Facts of a record: found by dotted name, read from a file and checked one by one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from lra.config import UserError

LARGEST = 1e18  # no count or measurement of a run comes near it
Kind = Callable[[Any], bool]


def find(facts: Any, key: str, default: Any = None) -> Any:
    """A fact by its dotted name; with KeyError as default, that is raised where there is none."""
    for part in key.split("."):
        if not isinstance(facts, dict) or part not in facts:
            if default is KeyError:
                raise KeyError(key)
            return default
        facts = facts[part]
    return facts


def read(path: Path) -> dict[str, Any]:
    """The facts of a file; UserError names it where it holds none."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"record {path} is damaged: {error}") from error
    if not isinstance(facts, dict):
        raise UserError(f"record {path} is no record: it holds a {type(facts).__name__}")
    return facts


# ---------------------------------------------------------------------- kinds of facts


def text(value: Any) -> bool:
    return isinstance(value, str)


def word(value: Any) -> bool:
    """A name that may stand in a path and in a table."""
    return isinstance(value, str) and re.fullmatch(r"\w[\w.-]*", value) is not None


def flag(value: Any) -> bool:
    return isinstance(value, bool)


def group(value: Any) -> bool:
    return isinstance(value, dict)


def number(value: Any) -> bool:
    return isinstance(value, int | float) and not flag(value) and 0 <= value < LARGEST


def whole(value: Any) -> bool:
    return isinstance(value, int) and number(value)


def share(value: Any) -> bool:
    return number(value) and value <= 1


def score(value: Any) -> bool:
    """An accuracy, or a correlation, which may be negative."""
    return isinstance(value, int | float) and not flag(value) and -1 <= value <= 1


def time(value: Any) -> bool:
    """A moment with its zone, so that those of two machines can be compared."""
    try:
        return datetime.fromisoformat(value).tzinfo is not None
    except (TypeError, ValueError):
        return False


def check(where: str, facts: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
    """UserError for the first fact that is not of its kind. A key that starts with `?` may be
    missing or null."""
    for key, fits in kinds.items():
        value = find(facts, key.removeprefix("?"))
        if fits(value) or (value is None and key.startswith("?")):
            continue
        problem = "missing" if value is None else f"{value!r}, which is no {fits.__name__}"
        raise UserError(f"{where} is damaged: {key.removeprefix('?')} is {problem}")
