"""What a choice of protocol does not do, said before a run: a file that takes another protocol's
name, and an experiment whose settings go over those of the protocol that was chosen beside it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import yaml

from lra.base import groups
from lra.base.errors import UserError


def remark_on(words: Sequence[str]) -> None:
    """Look at the words of a run; UserError for a protocol without a name of its own."""
    chosen = dict(word.lstrip("+").partition("=")[::2] for word in words)
    protocol, experiment = chosen.get("protocol"), chosen.get("experiment")
    if not protocol or (file := groups.find("protocol", protocol)) is None:
        return
    if "name" not in _content("protocol", protocol):
        raise UserError(
            f"{file} has no name of its own: give it `name: {protocol}` and `version: 1`, so that "
            "its runs are never taken for those of another protocol"
        )
    if experiment and (set_there := _content("experiment", experiment).get("protocol")):
        _say(
            f"remark: experiment={experiment} sets {', '.join(f'protocol.{k}' for k in set_there)} "
            f"over those of protocol={protocol}"
        )


@cache
def _say(text: str) -> None:
    """Once in a process: a sweep has many runs."""
    print(text, file=sys.stderr)


def _content(group: str, name: str) -> dict[str, Any]:
    file = groups.find(group, name)
    content = yaml.safe_load(file.read_text(encoding="utf-8")) if file else None
    return content if isinstance(content, dict) else {}
