"""Kept numbers against measured ones: what moved, and the one sentence that says what to do."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

RUNS = Path(__file__).parent / "runs"
CLOSE = 1e-8  # relative: between emulated processors 2e-13 was seen, after 20 steps in float64
TINY = 1e-11  # absolute, for numbers that are 0 but for rounding
SINGLE = 2e-5  # of float32
Numbers = dict[str, Any]


class Moved(NamedTuple):
    """The first number that is not what it was."""

    where: str  # "loss at step 3"
    now: str
    kept: str

    def __str__(self) -> str:
        return f"{self.where}: {self.now} for {self.kept}"


def file_of(name: str) -> Path:
    return RUNS / f"{name}.json"


def kept(name: str) -> Numbers | None:
    """What the file of a golden run holds; None before it is written."""
    file = file_of(name)
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def write(name: str, numerics: Mapping[str, int], numbers: Numbers) -> None:
    RUNS.mkdir(exist_ok=True)
    text = json.dumps({"numerics": dict(numerics), **rounded(numbers)}, indent=1)
    file_of(name).write_text(text + "\n", encoding="utf-8")


def rounded(value: Any) -> Any:
    """Eleven digits of each number, which is more than is compared."""
    match value:
        case float():
            return float(f"{value:.11g}")
        case Mapping():
            return {str(key): rounded(inner) for key, inner in value.items()}
        case list() | tuple():
            return [rounded(inner) for inner in value]
    return value


def first_moved(now: Numbers, before: Numbers, close: float = CLOSE) -> Moved | None:
    """Compare numbers one by one, in their order."""
    before = {key: value for key, value in before.items() if key != "numerics"}
    return next(_moved(rounded(now), before, (), close), None)


def _moved(now: Any, before: Any, path: tuple[Any, ...], close: float) -> Iterator[Moved]:
    if isinstance(now, dict) and isinstance(before, dict):
        for key in dict.fromkeys([*before, *now]):
            yield from _moved(now.get(key), before.get(key), (*path, key), close)
    elif isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        for i, (a, b) in enumerate(zip(now, before, strict=True)):
            yield from _moved(a, b, (*path, i), close)
    elif not _same(now, before, close):
        yield Moved(_words(path), _text(now), _text(before))


def _same(now: Any, before: Any, close: float) -> bool:
    numbers = (int, float)
    if not (isinstance(now, numbers) and isinstance(before, numbers)):
        return type(now) is type(before) and now == before
    if math.isnan(now) or math.isnan(before):
        return math.isnan(now) and math.isnan(before)
    if isinstance(now, int) and isinstance(before, int):
        return now == before
    return abs(now - before) <= close * abs(before) + TINY


def _words(path: tuple[Any, ...]) -> str:
    *above, last = path
    if above and above[-1] == "losses":
        of = [str(part) for part in above[:-1]]
        return " ".join([*of, f"loss at step {last + 1}"])
    return " ".join(str(part) for part in path)


def _text(value: Any) -> str:
    return f"{value:.8g}" if isinstance(value, float) else f"{value!r:.60}"
