"""Progress of a preparation: a bar on a terminal, a line every few seconds elsewhere; on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

EVERY = 5.0  # seconds between lines
REFRESH = 0.1  # seconds between redraws of the bar


class Progress:
    """Counts what passes through :meth:`track`."""

    def __init__(self, what: str, total: int | None):
        self.what, self.total, self.done = what, total, 0
        self._start = time.monotonic()
        self._next = 0.0
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._bar = _bar()
            self._task = self._bar.add_task(self.what, total=self.total, text="")
            self._bar.start()
        self._next = time.monotonic() + (REFRESH if self._bar else EVERY)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def track(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            yield item
            self.done += 1
            if time.monotonic() >= self._next:
                self._show()

    def _show(self) -> None:
        if self._bar:
            self._next = time.monotonic() + REFRESH
            self._bar.update(self._task, completed=self.done, text=self._text())
            self._bar.refresh()
        else:
            self._next = time.monotonic() + EVERY
            print(f"  {self.what}: {self._text()}", file=sys.stderr, flush=True)

    def _text(self) -> str:
        rate = self.done / max(time.monotonic() - self._start, 1e-9)
        if self.total is None:
            return f"{self.done:,}  {rate:,.0f}/s"
        left = (self.total - self.done) / rate
        return f"{self.done:,}/{self.total:,}  {rate:,.0f}/s  {left:,.0f} s left"


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
    return Bar(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
