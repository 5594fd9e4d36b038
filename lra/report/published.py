"""Published numbers and their sources: shown beside measured ones, never ranked with them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lra.base.config import UserError, nearest

FILE = Path(__file__).with_name("published.yaml")


def published_score(
    name: str | None, method: str, task: str, options: Mapping[str, Any] | None = None
) -> tuple[float | None, str | None]:
    """The score of a method on a task in a published table and its source, or twice None. Rows of
    LUNA's ablations are named by its options."""
    printed: dict[str, Any] = table(name) if name else {"tasks": ()}
    for row, values in printed["rows"].items() if task in printed["tasks"] else ():
        if row == method or (method == "luna" and "=" in row and _has(options or {}, row)):
            return values["values"][printed["tasks"].index(task)], values["source"]
    return None, None


def _has(options: Mapping[str, Any], name: str) -> bool:
    """Tell if the options have all values in a name such as `M=8 L=4`."""
    named = (pair.split("=") for pair in name.split())
    return all(str(options.get(key)) == value for key, value in named)


@cache
def contents() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


def table(name: str) -> dict[str, Any]:
    tables = contents()["tables"]
    if name not in tables:
        raise UserError(f"no published table '{name}'{nearest(name, tables)}")
    return {"digits": 2} | tables[name]
