"""Work spread over processes, results in the order of the work."""

from __future__ import annotations

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


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(
    function: Callable[[T], R], work: Iterable[T], *, workers: int, ahead: int = 3
) -> Iterator[R]:
    """function(item) for each item, in order. Work may be endless: at most `ahead` results per
    worker wait.

    The processes are spawned, not forked: the caller may have started threads.
    """
    if workers < 1:
        raise UserError(f"workers={workers} is out of range: it must be at least 1")
    if workers == 1:
        yield from map(function, work)
        return
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_start_worker
    )
    waiting: deque = deque()
    items = iter(work)
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= workers * ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process died, most likely for lack of memory: try fewer with --workers"
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    """End with the parent process: a worker whose parent was killed would wait forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
