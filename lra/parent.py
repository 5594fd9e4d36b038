"""Start child processes, and detect in a child whether its parent has died: nobody would stop the
child then, and its GPU may be given to another job."""

from __future__ import annotations

import multiprocessing
import os

from lra.config import CONFIGS, PACKAGE

VARIABLE = "LRA_PARENT"  # the process of a sweep that waits for this run


def environment() -> dict[str, str]:
    """The environment for a child process that runs this very code, wherever it starts, and that
    should notice when this one dies."""
    found = os.environ | {VARIABLE: str(os.getpid()), "PYTHONSAFEPATH": "1"}  # not the code in `.`
    if not CONFIGS.is_relative_to(PACKAGE):  # a clone, while something else may be installed
        paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
        found["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return found


def is_gone() -> bool:
    """Whether the parent of a sweep's run, or of a joblib worker, has died. A run that was started
    by hand has no such parent."""
    joblib = multiprocessing.parent_process()
    parent = int(os.environ.get(VARIABLE, 0)) if joblib is None else joblib.pid
    return parent not in (0, os.getppid())
