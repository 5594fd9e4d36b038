"""In place of the process that measures, in a module of its own: it imports all that this does."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from multiprocessing.connection import Connection


def measured(words: list[str], _: str, sender: Connection) -> None:
    """Send the costs of one run, after the signal that a test sends; of `uniform` a part, and then
    go on for a minute."""
    with contextlib.suppress(OSError):  # nobody listens any more
        sender.send({"val": 30, "test": 9})
        sender.send({"start": 1.0})
        print(".", end="", file=sys.stderr, flush=True)
        wait_for_ctrl_c()
        if "attention=uniform" in words:
            time.sleep(60)
        sender.send({"step": 0.1, "evaluation": 0.1})
        sender.send({"peak": 100.0, "room": 1000.0, "share": 1.0})


def wait_for_ctrl_c() -> None:
    """Until it is held back, or for two seconds where a test cannot send it."""
    end = time.monotonic() + 2
    while signal.SIGINT not in signal.sigpending() and time.monotonic() < end:
        time.sleep(0.02)
