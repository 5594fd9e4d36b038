"""Long work: spread over processes with results in the order of the work, and its progress."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import TypeVar

from lra.base.errors import UserError

T = TypeVar("T")
R = TypeVar("R")
AHEAD = 3  # results per worker that may wait to be fetched
EVERY = 5.0  # seconds between lines of progress


def cores() -> int:
    """Count the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(function: Callable[[T], R], work: Iterable[T], *, workers: int) -> Iterator[R]:
    """Yield function(item) for each item, in order; work may be endless.

    The processes are spawned, not forked: the caller may have started threads.
    """
    if workers == 1:
        yield from map(function, work)
        return
    context = _Context()
    end, open_end = context.Pipe(duplex=False)  # workers end when it closes, even by a kill
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(end,))
    results = (pool.submit(function, item) for item in work)
    try:
        waiting = deque(itertools.islice(results, AHEAD * workers))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(itertools.islice(results, 1))
    except BrokenProcessPool as error:
        # The executor waits for all its workers, but does not stop one that it started while
        # another was dying.
        open_end.close()
        raise UserError(
            "a worker process died, most likely for lack of memory: try fewer with --workers"
        ) from error
    finally:
        # Wait for what is being computed: the executor would read a result that was cut off while
        # it was written for ever.
        pool.shutdown(cancel_futures=True)
        open_end.close()


class _Worker(SpawnProcess):
    def start(self) -> None:
        """Start without the main module, which a spawned process runs again otherwise: a script
        that trains would prepare its data in every worker."""
        script, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            super().start()
        finally:
            sys.modules["__main__"] = script


class _Context(SpawnContext):
    Process = _Worker


def _start_worker(end: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_end_with_pool, args=(end,), daemon=True).start()


def _end_with_pool(end: Connection) -> None:
    end.poll(None)  # until the other end closes: nothing is ever sent
    os._exit(1)


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Pass the items on, and say on stderr every few seconds how many have passed."""
    due = time.monotonic() + EVERY
    for done, item in enumerate(items, 1):
        yield item
        if time.monotonic() >= due:
            due = time.monotonic() + EVERY
            of_all = "" if total is None else f" of {total:,}"
            print(f"  {what}: {done:,}{of_all}", file=sys.stderr, flush=True)
