"""Published numbers and their sources: shown beside measured ones, never ranked with them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml


@cache
def contents() -> dict[str, Any]:
    return yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))


def table(name: str) -> dict[str, Any]:
    return {"digits": 2} | contents()["tables"][name]


def published_score(
    name: str | None, method: str, task: str, options: Mapping[str, Any]
) -> tuple[float | None, str | None]:
    """The score of a method on a task in a published table and its source, or twice None. Rows of
    LUNA's ablations are named by its options, such as `M=8 L=4`."""
    printed: dict[str, Any] = table(name) if name else {"tasks": ()}
    for row, values in printed["rows"].items() if task in printed["tasks"] else ():
        pairs = [part.split("=") for part in row.split()]
        named = dict(pairs) if all(len(pair) == 2 for pair in pairs) else {}
        of_luna = method == "luna" and all(str(options.get(k)) == v for k, v in named.items())
        if row == method or (named and of_luna):
            return values["values"][printed["tasks"].index(task)], values["source"]
    return None, None
