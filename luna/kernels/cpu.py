"""Kernels compiled at run time for the CPU, by numba (`pip install luna-lra[fast]`).

numba compiles a kernel on its first call and keeps the machine code in a cache on disk; no C
compiler is involved. A kernel takes a range of tasks and releases the interpreter lock, and `run`
divides the tasks among as many threads as torch has been told to use. How the work is cut into
tasks never depends on the number of threads, so neither does the result.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

AVAILABLE = importlib.util.find_spec("numba") is not None


def jit(function: Callable, *, reorder: bool = True) -> Callable:
    """numba's njit. With `reorder` a sum may be regrouped, at compile time and once for all, to
    use vector registers; NaN and infinities keep their meaning."""
    import numba

    flags = {"contract", "reassoc", "nsz"} if reorder else False
    with _cached_in(cache_folder(Path(__file__).parent)):
        return numba.njit(function, nogil=True, cache=True, error_model="numpy", fastmath=flags)


@functools.cache
def cache_folder(sources: Path) -> Path:
    """Named by the text of all kernels: numba looks for changes in a kernel's own file alone, and
    would go on with machine code into which another file's old functions were compiled."""
    text = b"".join(path.read_bytes() for path in sorted(sources.rglob("*.py")))
    own = sources / "__pycache__"
    if not os.access(sources, os.W_OK):
        own = Path.home() / ".cache" / "luna-lra"
    version = hashlib.sha256(text).hexdigest()[:12]
    return Path(os.environ.get("NUMBA_CACHE_DIR", own)) / f"numba-{version}"


@contextlib.contextmanager
def _cached_in(folder: Path) -> Iterator[None]:
    from numba.core import config as settings

    config: Any = settings  # its names are made at import
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before


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
