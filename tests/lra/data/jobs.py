"""Work for processes, in a module of its own: they import all that the module imports."""

from __future__ import annotations

import os
import time


def slow_for_even(i: int) -> tuple[int, int]:
    time.sleep(0.02 * (i % 2 == 0))
    return i, os.getpid()


def dies_at_three(i: int) -> int:
    if i == 3:
        os._exit(9)
    return i


def dies_at_once_or_talks(i: int) -> bytes:
    if i == 0:
        os._exit(9)
    time.sleep(1)
    return bytes(10**7)  # more than a pipe holds that nobody reads any more


def large(i: int) -> bytes:
    return bytes(4 * 10**6)
