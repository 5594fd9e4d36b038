"""Types of single facts of a record, and facts by their dotted names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import pydantic
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    Field,
    PlainSerializer,
    WrapValidator,
)

from lra.base.limits import LARGEST, NAME

DATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


def _as_it_was(value: Any, check: Callable[[Any], float]) -> Any:
    """Keep a whole number whole, which pydantic would make a float."""
    check(value)
    return value


def read_time(text: Any) -> datetime:
    """Read a date and a time of this century. Python alone would take weeks and all years to 9999;
    pandas would not, and tables sort by it."""
    time = datetime.fromisoformat(text)
    if not DATED.match(text) or not 2000 <= time.year < 2100:
        raise ValueError(f"{text!r:.40} is no time of a run")
    return time


Name = Annotated[str, Field(pattern=f"^{NAME}$")]
RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$", max_length=300)]
Whole = Annotated[int, Field(ge=0, lt=LARGEST)]
Positive = Annotated[int, Field(ge=1, lt=LARGEST)]
AS_IT_IS = PlainSerializer(lambda value: value, return_type=Any)
Real = Annotated[float, WrapValidator(_as_it_was), AS_IT_IS]
Number = Annotated[float, Field(ge=0, lt=LARGEST), WrapValidator(_as_it_was), AS_IT_IS]
Share = Annotated[float, Field(ge=0, le=1)]
Score = Annotated[float, Field(gt=-LARGEST, lt=LARGEST)]  # in the unit of its metric
# With a zone, so that it can be compared with other machines'; pydantic alone would read numbers.
Time = Annotated[AwareDatetime, BeforeValidator(read_time)]
Point = Annotated[tuple[Whole, Score], Field(strict=False)]  # step and score; JSON has lists
Group = dict[str, Any]


class Facts(pydantic.BaseModel, extra="allow", strict=True):
    """Named facts have these types; others stay as they are."""


@dataclass(frozen=True)
class Column:
    """How a fact appears in the data frame of records (lra/results/frame.py), where its dotted name
    does not say it."""

    name: str = ""  # a shorter one
    number: bool = False  # a column of floats, which is there even if no run has the fact
    shown: bool = True


def is_option(value: Any) -> Any:
    """An option is a word, a number, or a list of these: it becomes part of a row's name. An item
    of a list may be a method with its options, as a layer of a stack is."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict) and isinstance(value, list) and isinstance(item.get("name"), str):
            for option in item.values():
                is_option(option)
        elif not isinstance(item, str | int | float | None):
            raise ValueError(f"{value!r:.200} is neither a word, a number nor a list of these")
    return value


Option = Annotated[Any, AfterValidator(is_option)]


def find_fact(facts: Any, key: str, default: Any = None) -> Any:
    """Look up a fact by its dotted name."""
    for part in key.split("."):
        if not isinstance(facts, dict) or part not in facts:
            return default
        facts = facts[part]
    return facts


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every fact in nested groups, with its dotted name."""
    groups = [(name, value)]
    while groups:
        name, value = groups.pop()
        if isinstance(value, dict):
            inside = ((f"{name}.{key}" if name else key, inner) for key, inner in value.items())
            groups += reversed(list(inside))
        else:
            yield name, value


def dotted_key(value: Any) -> str | None:
    """Find a key that has a dot itself or is empty, so that dotted names would be ambiguous."""
    groups = [value]
    while groups:
        for key, inner in groups.pop().items():
            if "." in key or not key:
                return str(key)
            if isinstance(inner, dict):
                groups.append(inner)
    return None


def shared_name(a: Any, b: Any, name: str = "") -> str | None:
    """Find a dotted name that is in both groups with other values."""
    if isinstance(a, dict) and isinstance(b, dict):
        names = (shared_name(a[key], b[key], f"{name}.{key}") for key in a.keys() & b.keys())
        return next(filter(None, names), None)
    return None if a == b or isinstance(a, dict) or isinstance(b, dict) else name[1:]


def without_dots(facts: Any) -> Any:
    """Write the names of layers with slashes: a dot in a key would make dotted names ambiguous."""
    if isinstance(facts, dict):
        return {key.replace(".", "/"): without_dots(value) for key, value in facts.items()}
    return [without_dots(value) for value in facts] if isinstance(facts, list) else facts
