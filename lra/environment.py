"""The environment of a run, for its record: versions, machine, git revision, peak memory."""

from __future__ import annotations

import importlib.metadata
import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("pytorch-lightning", "hydra-core", "omegaconf", "numpy", "tensorflow-datasets")
REPOSITORY = Path(__file__).resolve().parent.parent


def versions() -> dict[str, str]:
    found = {
        "python": platform.python_version(),
        "luna-lra": importlib.metadata.version("luna-lra"),
        "torch": str(torch.__version__),  # with its build, such as 2.13.0+cu130, unlike pip's
    }
    return found | {p: importlib.metadata.version(p) for p in PACKAGES}


def machine(device: torch.device) -> dict[str, Any]:
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else _cpu_name(),
        "kind": device.type,
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def git() -> dict[str, Any]:
    """The revision, and whether the files differ from it; None for both outside a checkout, even if
    the installed package lies inside another repository."""

    def ask(*arguments: str) -> str | None:
        command = ["git", "-C", str(REPOSITORY), *arguments]
        try:
            return subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=10
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return None

    if ask("ls-files", "--error-unmatch", str(Path(__file__).resolve())) is None:
        return {"revision": None, "dirty": None}
    changes = ask("status", "--porcelain", "--untracked-files=no")
    return {
        "revision": ask("rev-parse", "HEAD"),
        "dirty": None if changes is None else bool(changes),
    }


def peak_memory_mib(device: torch.device) -> float:
    """Peak memory of the allocator on a GPU, of the whole process on a CPU."""
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
