"""The environment of a run, for its record: versions, machine, git revision, peak memory."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("pytorch-lightning", "hydra-core", "omegaconf", "numpy", "numba", "triton",
            "tensorflow-datasets")  # fmt: skip
# Environment variables that choose instructions, threads or precision.
SWITCHES = (
    "ATEN_CPU_CAPABILITY", "CUBLAS_WORKSPACE_CONFIG", "MKL_CBWR", "MKL_NUM_THREADS",
    "NPY_DISABLE_CPU_FEATURES", "NUMBA_CPU_FEATURES", "NUMBA_CPU_NAME", "NUMBA_DISABLE_JIT",
    "NUMBA_NUM_THREADS", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)  # fmt: skip
REPOSITORY = Path(__file__).resolve().parents[2]


def versions() -> dict[str, str]:
    installed = {
        "python": platform.python_version(),
        "luna-lra": importlib.metadata.version("luna-lra"),
        "torch": str(torch.__version__),  # with its build, such as 2.13.0+cu130, unlike pip's
    }
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[package] = importlib.metadata.version(package)
    return installed


def machine(device: torch.device) -> dict[str, Any]:
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else _cpu_name(),
        "kind": device.type,
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def switches() -> dict[str, str]:
    """Collect the switches that can change numbers, as far as somebody has set them."""
    torch_has = {
        "torch deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "torch float32 matmul precision": torch.get_float32_matmul_precision(),
    }
    usual = {"False", "highest"}
    changed = {name: os.environ[name] for name in SWITCHES if name in os.environ}
    return changed | {name: value for name, value in torch_has.items() if value not in usual}


def git() -> dict[str, Any]:
    """The revision, and whether the files differ from it; None for both outside a checkout, even if
    the installed package lies inside another repository."""

    def ask(*arguments: str) -> str | None:
        # Without the lock that a git which is killed with its run would leave in the checkout.
        command = ["git", "--no-optional-locks", "-C", str(REPOSITORY), *arguments]
        try:
            return subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=10
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return None

    if ask("ls-files", "--error-unmatch", str(Path(__file__).resolve())) is None:
        return {"revision": None, "dirty": None}
    changes = ask("status", "--porcelain")  # files that git does not know count too
    return {
        "revision": ask("rev-parse", "HEAD"),
        "dirty": None if changes is None else bool(changes),
    }


def peak_memory_mib(device: torch.device) -> float:
    """Measure the peak memory of the allocator on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
