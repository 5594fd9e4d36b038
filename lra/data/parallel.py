"""Work spread over processes, results in the order of the work."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from lra.base.config import UserError

T = TypeVar("T")
R = TypeVar("R")
AHEAD = 3  # results per worker that may wait to be fetched


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
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker)
    results = (pool.submit(function, item) for item in work)
    try:
        waiting = deque(itertools.islice(results, AHEAD * workers))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(itertools.islice(results, 1))
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process died, most likely for lack of memory: try fewer with --workers"
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End a worker whose parent was killed: it would wait forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
