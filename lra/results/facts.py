"""Facts of a record: looked up by dotted name, read from a file and checked one by one."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from lra.base.config import UserError

LARGEST = 1e18  # no count or measurement of a run comes near it


def find_fact(facts: Any, key: str, default: Any = None) -> Any:
    """Look up a fact by its dotted name; with KeyError as default a missing one raises it."""
    for part in key.split("."):
        if not isinstance(facts, dict) or part not in facts:
            if default is KeyError:
                raise KeyError(key)
            return default
        facts = facts[part]
    return facts


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every fact in nested groups, with its dotted name."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else key)
    else:
        yield name, value


def read_facts(path: Path) -> dict[str, Any]:
    """Read the facts in a file; UserError names a file that holds none."""
    try:
        text = path.read_text(encoding="utf-8")
        facts = json.loads(text)
        if "\\ud" in text.lower():  # half of a character, which cannot be written anywhere
            json.dumps(facts, ensure_ascii=False).encode()
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"record {path} is damaged: {error}") from error
    if not isinstance(facts, dict):
        raise UserError(f"{path} is not a record: it holds a {type(facts).__name__}")
    return facts


# ---------------------------------------------------------------------- kinds of facts


@dataclasses.dataclass(frozen=True)
class FactKind:
    what: str  # for the error message
    fits: Callable[[Any], bool]
    setting: str | None = None  # that it must repeat

    def repeats(self, setting: str) -> FactKind:
        return dataclasses.replace(self, setting=setting)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    return is_number(value) and 0 <= value < LARGEST


def _is_time(value: Any) -> bool:
    try:
        return datetime.fromisoformat(value).tzinfo is not None
    except (TypeError, ValueError):
        return False


text = FactKind("a text", lambda v: isinstance(v, str))
# A name is part of paths and tables.
name = FactKind("a name of letters, digits, '_', '.' and '-'",
            lambda v: isinstance(v, str) and re.fullmatch(r"\w[\w.-]*", v) is not None)  # fmt: skip
names = FactKind("a list of names", lambda v: isinstance(v, list) and all(map(name.fits, v)))
flag = FactKind("true or false", lambda v: isinstance(v, bool))
group = FactKind("a group of facts", lambda v: isinstance(v, dict))
number = FactKind("a number from 0", is_count)
whole = FactKind("a whole number from 0", lambda v: isinstance(v, int) and is_count(v))
share = FactKind("a number from 0 to 1", lambda v: is_count(v) and v <= 1)
# An accuracy, or a correlation, which may be negative.
score = FactKind("a number from -1 to 1", lambda v: is_number(v) and -1 <= v <= 1)
# With its zone, so that times of two machines can be compared.
time = FactKind("a time with its zone", _is_time)


def check_facts(where: str, facts: Mapping[str, Any], kinds: Mapping[str, FactKind]) -> None:
    """UserError for the first fact that is not of its kind or not what the settings say. A key that
    starts with `?` may be missing or null."""
    for key, kind in kinds.items():
        name = key.removeprefix("?")
        value = find_fact(facts, name)
        if not kind.fits(value) and (value is not None or name == key):
            problem = "missing" if value is None else f"{value!r:.200}, not {kind.what}"
            raise UserError(f"{where} is damaged: {name} is {problem}")
        if kind.setting is None:
            continue
        setting = find_fact(facts, f"settings.{kind.setting}")
        if value != setting:
            raise UserError(
                f"{where} is damaged or was edited: its {name} is {value!r:.200}, but in its "
                f"settings it is {setting!r:.200}"
            )
