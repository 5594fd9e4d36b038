"""What the process of a run keeps: the random state that torch draws from, and freed memory."""

from __future__ import annotations

import contextlib
import ctypes

import torch
from torch import Tensor


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
