"""The environment of child processes, and how a child notices that its parent has died: nobody
would stop it then, while its GPU may be given to another job."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable

from lra.config import CONFIGS, PACKAGE

VARIABLE = "LRA_PARENT"  # process id of the sweep that waits for this run, or:
FORKED = "forked"  # ask multiprocessing, for the process above a fork is only its server
FIRST = "LRA_FIRST"  # process id of the first process of a run of several
CHECK_EVERY = 1.0  # seconds


def environment() -> dict[str, str]:
    """The environment for a child process that imports this very code, wherever it starts, and can
    call `is_gone`."""
    # PYTHONSAFEPATH: import nothing from the working directory.
    found = os.environ | {VARIABLE: str(os.getpid()), "PYTHONSAFEPATH": "1"}
    if not CONFIGS.is_relative_to(PACKAGE):  # a clone; another version may be installed
        paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
        found["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return found


def is_gone() -> bool:
    """Whether the parent of this run, a sweep or a joblib process, has died; False for a run that
    was started by hand."""
    above, named = multiprocessing.parent_process(), os.environ.get(VARIABLE, "0")
    if above is not None and named == FORKED:
        return not above.is_alive()
    parent = int(named) if above is None else above.pid
    return parent not in (0, os.getppid())


def first_is_gone() -> bool:
    """Whether the first process of this run, which is this one or started it, has died. SLURM
    starts each of them, and ends them itself."""
    return int(os.environ.get(FIRST, "0")) not in (0, os.getpid(), os.getppid())


def leave_after(gone: Callable[[], bool], grace: float) -> None:
    """End this process `grace` seconds after `gone` says yes for the first time, even where it
    waits for a message that will not come."""

    def watch() -> None:
        while not gone():
            time.sleep(CHECK_EVERY)
        time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
