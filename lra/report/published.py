"""Published numbers and their sources: shown beside measured ones, never ranked with them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lra.base.config import UserError, nearest

FILE = Path(__file__).with_name("published.yaml")


class Published(NamedTuple):
    value: float
    source: str  # a key of sources()


def published_score(
    table: str | None, method: str, task: str, options: Mapping[str, Any] | None = None
) -> Published | None:
    """The score of a method on a task in a published table. Rows of LUNA's ablations are named by
    its options."""
    if table is None:
        return None
    printed = _table(table)
    for name, row in printed["rows"].items() if task in printed["tasks"] else ():
        if name == method or (method == "luna" and "=" in name and _has(options or {}, name)):
            return Published(row["values"][printed["tasks"].index(task)], row["source"])
    return None


def _has(options: Mapping[str, Any], name: str) -> bool:
    """Tell if the options have all values in a name such as `M=8 L=4`."""
    named = (pair.split("=") for pair in name.split())
    return all(str(options.get(key)) == value for key, value in named)


def sources() -> dict[str, str]:
    """One sentence per source on how its numbers were made."""
    return contents()["sources"]


def title(table: str) -> str:
    return _table(table)["title"]


def digits(table: str) -> int:
    """Digits after the point, as printed."""
    return _table(table).get("digits", 2)


@cache
def contents() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


def _table(name: str) -> dict[str, Any]:
    tables = contents()["tables"]
    if name not in tables:
        raise UserError(f"no published table '{name}'{nearest(name, tables)}")
    return tables[name]
