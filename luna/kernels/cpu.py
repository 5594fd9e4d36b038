"""Kernels compiled at run time for the CPU, by numba (`pip install luna-lra[fast]`).

numba compiles a kernel on its first call and keeps the machine code in a cache on disk; no C
compiler is involved. A kernel takes a range of tasks and releases the interpreter lock, and `run`
divides the tasks among as many threads as torch has been told to use. How the work is cut into
tasks never depends on the number of threads, so neither does the result.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

AVAILABLE = importlib.util.find_spec("numba") is not None


def jit(function: Callable, *, reorder: bool = True) -> Callable:
    """numba's njit. With `reorder` a sum may be regrouped, at compile time and once for all, to
    use vector registers; NaN and infinities keep their meaning."""
    import numba

    flags = {"contract", "reassoc", "nsz"} if reorder else False
    return numba.njit(function, nogil=True, cache=True, error_model="numpy", fastmath=flags)


def run(kernel: Callable, tasks: int, *arguments: Any) -> None:
    """kernel(first, last, *arguments) over all tasks, on torch.get_num_threads() threads."""
    threads = min(torch.get_num_threads(), tasks)
    if threads <= 1:
        kernel(0, tasks, *arguments)
        return
    ends = [tasks * i // threads for i in range(threads + 1)]
    pool = _pool(threads - 1)
    rest = [pool.submit(kernel, ends[i], ends[i + 1], *arguments) for i in range(1, threads)]
    kernel(ends[0], ends[1], *arguments)
    for share in rest:
        share.result()


@functools.cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="luna-kernel")


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_pool.cache_clear)
