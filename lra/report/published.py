"""Published numbers and their sources: shown beside measured ones, never ranked with them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lra.config import UserError, nearest

FACTS = Path(__file__).with_name("published.yaml")


class Published(NamedTuple):
    """One published accuracy, in percent."""

    value: float
    source: str  # a key of sources()


@cache
def facts() -> dict[str, Any]:
    return yaml.safe_load(FACTS.read_text(encoding="utf-8"))


def sources() -> dict[str, str]:
    """What stands behind the values of each source, in one sentence."""
    return facts()["sources"]


def title(table: str) -> str:
    return _table(table)["title"]


def lra(table: str, attention: str, task: str) -> Published | None:
    """The value of one method on one task in a published table of the benchmark."""
    found = _table(table)
    row = found["rows"].get(attention)
    if row is None or task not in found["tasks"]:
        return None
    return Published(row["values"][found["tasks"].index(task)], row["source"])


def ablation(table: str, task: str, options: Mapping[str, Any]) -> Published | None:
    """The value of an ablation's row, found by the attention options that name it."""
    found = _table(table)
    if task != found["task"]:
        return None
    for row in found["rows"]:
        if all(options.get(key) == value for key, value in row["at"].items()):
            return Published(row["value"], "luna")
    return None


def conversion(table: str, method: str, task: str) -> Published | None:
    """The score of a converted (`luna`) or given (`teacher`) model in a published table; `task` may
    be `recovery`."""
    found = facts()["conversions"][table]
    row = found["rows"].get(method)
    if row is None or task not in found["tasks"]:
        return None
    return Published(row["values"][found["tasks"].index(task)], row["source"])


def digits(table: str) -> int:
    """Digits after the point that a table was printed with."""
    return 1 if table in facts()["conversions"] else 2


def is_ablation(table: str) -> bool:
    return table in facts()["ablations"]


def _table(name: str) -> dict[str, Any]:
    known = facts()["tables"] | facts()["ablations"] | facts()["conversions"]
    if name not in known:
        raise UserError(f"no published table '{name}'{nearest(name, known)}")
    return known[name]
