"""Does the process still live that waits for this one? Without it nobody will stop this one, and
its GPU may be given to another."""

from __future__ import annotations

import multiprocessing
import os

VARIABLE = "LRA_PARENT"  # the process of a sweep that waits for this run


def environment() -> dict[str, str]:
    """Of a process that should notice when this one dies."""
    return os.environ | {VARIABLE: str(os.getpid())}


def is_gone() -> bool:
    """Of a sweep's run, or of a joblib worker; never so where nothing waits, as under nohup."""
    joblib = multiprocessing.parent_process()
    parent = int(os.environ.get(VARIABLE, 0)) if joblib is None else joblib.pid
    return parent not in (0, os.getppid())
