"""`shard=3/64`: the third of 64 parts of a sweep, for machines that share no lock."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lra.base.errors import UserError

KEY = "shard"


def is_own(shard: str | None, number: int) -> bool:
    """Whether a job, by its number in the whole sweep from 0 on, is of this part. Neighbours differ
    in little, often in the seed alone, so that parts take about as long as each other."""
    if shard is None:
        return True
    found = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", str(shard))
    part, parts = map(int, found.groups()) if found else (1, 0)
    if part > parts:
        raise UserError(f"shard={shard} must be a part and the number of parts, such as 3/64")
    return number % parts == part - 1


def without_shard(words: Iterable[str]) -> list[str]:
    """The words of one run: of which part it was decides nothing."""
    return [word for word in words if word.partition("=")[0] != KEY]


def refuse_shard(shard: str | None) -> None:
    """UserError where there is no sweep to divide."""
    if shard is not None:
        raise UserError(f"shard={shard} is a part of a sweep, and this is one run: add -m")
