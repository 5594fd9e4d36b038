"""Of several processes that train one run on a machine, none outlives the first."""

from __future__ import annotations

import os
import signal
import threading
import time

FIRST = "LRA_FIRST_PROCESS"  # the number of the first, which starts the others
EVERY = 1.0  # seconds between looks


def is_first() -> bool:
    """Whether this is the first process of a run, by what Lightning, torchrun or SLURM has set."""
    return int(os.environ.get("LOCAL_RANK", 0)) == 0 and int(os.environ.get("SLURM_PROCID", 0)) == 0


def name_first() -> None:
    """Be the first process, for those that this one starts."""
    os.environ[FIRST] = str(os.getpid())


def end_with_first() -> None:
    """End when the first process has. If it is killed while the others wait for it, they would wait
    for half an hour, and hold the memory of their GPUs."""
    first = os.environ.get(FIRST)
    if first is None or first == str(os.getpid()):
        return

    def watch() -> None:
        while str(os.getppid()) == first:
            time.sleep(EVERY)
        os.kill(os.getpid(), signal.SIGKILL)  # it holds no lock and writes no file

    threading.Thread(target=watch, daemon=True).start()
