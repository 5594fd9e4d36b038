"""Kernels compiled at run time for the CPU, by numba (`pip install numba`).

numba compiles a kernel on its first call and keeps the machine code in a cache on disk; no C
compiler is involved. A kernel takes a range of tasks and releases the interpreter lock, and `run`
divides the tasks among as many threads as torch is set to use. How the work is cut into
tasks never depends on the number of threads, so neither does the result.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import itertools
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SHARES = 4  # of a thread, unless others are slower

AVAILABLE = importlib.util.find_spec("numba") is not None


def runs_on(t: Tensor) -> bool:
    """Say whether kernels in machine code take a tensor."""
    return AVAILABLE and t.device.type == "cpu"


def arrays(*tensors: Tensor) -> list[Any]:
    """View tensors as numpy's arrays."""
    return [t.detach().numpy() for t in tensors]


def jit(function: Callable, *, reorder: bool = True, inner: bool = False) -> Callable:
    """numba's njit. With `reorder` a sum may be regrouped, at compile time and once for all, to
    use vector registers; NaN and infinities keep their meaning. What machine code alone calls is
    `inner`: it has no entry for Python, which takes longer to compile than many a function. To
    call it from Python ends the process."""
    import numba
    from numba.core import config

    settings: Any = config  # its names are made at import
    flags = {"contract", "reassoc", "nsz"} if reorder else False
    entries: Any = {"no_cfunc_wrapper": True, "no_cpython_wrapper": inner}
    folder = cache_folder(Path(__file__).parent)
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(folder or "")
    try:
        return numba.njit(
            function,
            nogil=True,
            cache=folder is not None,
            error_model="numpy",
            fastmath=flags,
            **entries,
        )
    finally:
        settings.CACHE_DIR = before


inner = functools.partial(jit, inner=True)


@functools.cache
def cache_folder(sources: Path) -> Path | None:
    """The folder that keeps machine code, or None where none can be written.

    Its name depends on the text of all kernels: numba looks for changes in a kernel's own file
    alone, and would go on with machine code into which another file's old functions were compiled.
    It depends on the processor too: numba tells processors apart inside its index, but when two of
    them fill one folder of a shared disk at once, each may be given the other's instructions.
    """
    from numba.core.registry import cpu_target

    text = b"".join(path.read_bytes() for path in sorted(sources.rglob("*.py")))
    processor = repr(cpu_target.target_context.codegen().magic_tuple())  # name and features
    version = hashlib.sha256(text + processor.encode()).hexdigest()[:12]
    places = [sources / "__pycache__", Path("~/.cache/luna-lra")]
    if by_user := os.environ.get("NUMBA_CACHE_DIR"):
        places = [Path(by_user)]
    for place in places:
        with contextlib.suppress(OSError, RuntimeError):  # the user has no home
            folder = place.expanduser() / f"numba-{version}"
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    logging.getLogger("luna").warning(
        "every process compiles LUNA's kernels anew, because none of these folders can be "
        "written: %s; set NUMBA_CACHE_DIR to one that can",
        ", ".join(map(str, places)),
    )
    return None


def run(
    kernel: Callable, tasks: int, *arguments: Any, buffers: Callable[[], tuple] = tuple
) -> None:
    """kernel(first, last, *buffers(), *arguments) over all tasks, on torch.get_num_threads()
    threads, each with buffers of its own. A thread takes the next share of the tasks when it is
    free: its core may have other work to do."""
    threads = min(torch.get_num_threads(), tasks)
    if threads <= 1:
        kernel(0, tasks, *buffers(), *arguments)
        return
    count = min(tasks, SHARES * threads)
    ends = [tasks * i // count for i in range(count + 1)]
    shares = iter(list(itertools.pairwise(ends)))  # the interpreter gives each one out once
    errors: list[BaseException] = []

    def work(_: Any = None) -> None:
        try:
            own = buffers()
            for first, last in shares:
                kernel(first, last, *own, *arguments)
        except BaseException as error:  # C, which calls this, knows no exceptions
            errors.append(error)

    if (parallel := _openmp()) is not None:
        parallel(CALLBACK(work), None, threads, 0)
    else:
        with ThreadPoolExecutor(threads) as pool:
            pool.map(work, range(threads))
    if errors:
        raise errors[0]


CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@functools.cache
def _openmp() -> Any:
    """The function that calls another one on each of torch's own threads, if they are OpenMP's.
    After an operation these threads stay awake for milliseconds, each on a core, so that threads
    besides them would have to wait for a core."""
    try:
        return ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):  # another library, or Windows
        return None
