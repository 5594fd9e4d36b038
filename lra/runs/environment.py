"""The environment of a run, for its record: versions, machine, git revision, peak memory."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

PACKAGES = (
    "luna-lra",
    "pytorch-lightning",
    "hydra-core",
    "omegaconf",
    "numpy",
    "numba",
    "triton",
    "tensorflow-datasets",
)
# Environment variables that choose instructions, threads or precision.
SWITCHES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "MKL_CBWR",
    "MKL_NUM_THREADS",
    "NPY_DISABLE_CPU_FEATURES",
    "NUMBA_CPU_FEATURES",
    "NUMBA_CPU_NAME",
    "NUMBA_DISABLE_JIT",
    "NUMBA_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
REPOSITORY = Path(__file__).resolve().parents[2]


def origin() -> dict[str, Any]:
    """Collect what a record says about the code that ran."""
    return {"versions": versions(), "switches": switches(), "git": git()}


def versions() -> dict[str, str]:
    installed = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # with its build, such as 2.13.0+cu130, unlike pip's
    }
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[package] = importlib.metadata.version(package)
    return installed


def machine(device: torch.device) -> dict[str, Any]:
    name = platform.processor() or platform.machine()
    cpus = Path("/proc/cpuinfo")
    for line in cpus.read_text(encoding="utf-8").splitlines() if cpus.exists() else []:
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else name,
        "kind": device.type,
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def switches() -> dict[str, str]:
    """Collect the switches that can change numbers, as far as somebody has set them."""
    changed = {name: os.environ[name] for name in SWITCHES if name in os.environ}
    if torch.are_deterministic_algorithms_enabled():
        changed["torch deterministic algorithms"] = "True"
    if (precision := torch.get_float32_matmul_precision()) != "highest":
        changed["torch float32 matmul precision"] = precision
    return changed


def git() -> dict[str, Any]:
    """Return the revision, and whether the files differ from it; None for both outside a checkout,
    even if the installed package lies inside another repository."""
    # Without the lock that a git which is killed with its run would leave in the checkout.
    ask: Any = partial(subprocess.check_output, stderr=subprocess.DEVNULL, timeout=10, text=True)
    command = ["git", "--no-optional-locks", "-C", str(REPOSITORY)]
    if (REPOSITORY / ".git").exists():
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            dirty = ask([*command, "status", "--porcelain"]) != ""  # new files too
            return {"revision": ask([*command, "rev-parse", "HEAD"]).strip(), "dirty": dirty}
    return {"revision": None, "dirty": None}


def peak_memory_mib(device: torch.device) -> float:
    """Measure the peak memory of the allocator on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
