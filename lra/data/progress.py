"""Progress of a preparation: a bar on a terminal, a line every few seconds elsewhere; on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

EVERY = 5.0  # seconds between lines


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Pass the items on, and show how many have passed."""
    if sys.stderr.isatty():
        yield from _bar(items, what, total)
        return
    start = before = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        if (now := time.monotonic()) - before >= EVERY:
            before, rate = now, done / max(now - start, 1e-9)
            text = f"{done:,}" if total is None else f"{done:,}/{total:,}"
            text += f"  {rate:,.0f}/s"
            if total is not None:
                text += f"  {(total - done) / rate:,.0f} s left"
            print(f"  {what}: {text}", file=sys.stderr, flush=True)


def _bar(items: Iterable[T], what: str, total: int | None) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(items, total=total, description=what)
