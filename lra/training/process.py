"""What the process of a run keeps: the state of torch, what it draws from, and freed memory."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_BACKENDS: Any = torch.backends  # whose stubs are not complete
# What says in which precision float32 is multiplied; each has a `fp32_precision`.
MULTIPLIERS = (
    _BACKENDS.cuda.matmul,
    _BACKENDS.cudnn.conv,
    _BACKENDS.cudnn.rnn,
    _BACKENDS.mkldnn.matmul,
    _BACKENDS.mkldnn.conv,
    _BACKENDS.mkldnn.rnn,
)


@contextlib.contextmanager
def fresh_torch() -> Iterator[None]:
    """Compute as in a fresh process, whatever a notebook has set before: default dtype and device,
    autocast, grad and inference mode, precision of float32. All of it, with what torch draws from
    next and the number of threads, is as it was afterwards."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_num_threads, threads)
        stack.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
        if torch.get_default_device().type != "cpu":  # it costs time in each call of torch
            stack.enter_context(torch.device("cpu"))
        for device in {"cpu", *_accelerators()}:
            stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_full_float32())
        gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        stack.enter_context(torch.random.fork_rng(gpus))
        yield


def _accelerators() -> list[str]:
    there = torch.accelerator.current_accelerator()
    return [] if there is None else [there.type]


@contextlib.contextmanager
def _full_float32() -> Iterator[None]:
    """Multiply float32 in float32. torch has an older switch for all products and newer ones, and
    reading the older one raises where only a newer one was set."""
    kept = [backend.fp32_precision for backend in MULTIPLIERS]
    older = None
    with contextlib.suppress(RuntimeError):
        older = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    for backend in MULTIPLIERS:
        backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        if older is not None:
            torch.set_float32_matmul_precision(older)
        for backend, precision in zip(MULTIPLIERS, kept, strict=True):
            backend.fp32_precision = precision


def random_state(device: torch.device) -> dict[str, Tensor]:
    """What torch draws from next, on the CPU and on this device."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def reuse_memory() -> None:
    """Keep memory that a step on a CPU frees for the next one. glibc would give large blocks back,
    and the system clears them anew for every activation: a tenth of a step."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        libc, (trim_threshold, mmap_max) = ctypes.CDLL(None), (-1, -4)  # in malloc.h
        libc.mallopt(trim_threshold, -1)
        libc.mallopt(mmap_max, 0)
