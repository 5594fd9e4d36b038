"""Detect whether the parent process has died. Nobody would stop its child then, and the child's GPU
may be given to another job."""

from __future__ import annotations

import multiprocessing
import os

VARIABLE = "LRA_PARENT"  # the process of a sweep that waits for this run


def environment() -> dict[str, str]:
    """The environment for a child process that should notice when this one dies."""
    return os.environ | {VARIABLE: str(os.getpid())}


def is_gone() -> bool:
    """Whether the parent of a sweep's run, or of a joblib worker, has died. A run that was started
    by hand has no such parent."""
    joblib = multiprocessing.parent_process()
    parent = int(os.environ.get(VARIABLE, 0)) if joblib is None else joblib.pid
    return parent not in (0, os.getppid())
