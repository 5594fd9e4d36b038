"""NVIDIA's Multi-Process Service (MPS) for the runs of one sweep that share a GPU.

Without it their kernels take turns; with it they run side by side. `hydra.launcher.mps=true` asks
for it. It is not the default, because a fault of one run on the GPU then ends the others too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

CONTROL = "nvidia-cuda-mps-control"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"  # where a CUDA process finds its service
LOGS = "CUDA_MPS_LOG_DIRECTORY"

log = logging.getLogger("luna")


@contextlib.contextmanager
def service() -> Iterator[None]:
    """A service of this sweep's own while it runs; or the one that PIPES names already. Where there
    is none, one line says so, and the runs share the GPU plainly."""
    if PIPES in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="luna-mps-") as folder, _variables(folder):
        problem = _control("-d")
        if problem:
            log.warning("no MPS, the runs of this sweep take turns on the GPU: %s", problem)
            del os.environ[PIPES]
        try:
            yield
        finally:
            if not problem and (left := _control(words="quit\n")):
                log.warning("the MPS of this sweep did not end: %s", left)


@contextlib.contextmanager
def _variables(folder: str) -> Iterator[None]:
    os.environ |= {PIPES: folder, LOGS: folder}
    try:
        yield
    finally:
        for name in (PIPES, LOGS):
            os.environ.pop(name, None)


def _control(*arguments: str, words: str = "") -> str | None:
    """Call the service's control program; what went wrong, or None."""
    if (program := shutil.which(CONTROL)) is None:
        return f"{CONTROL} is not installed"
    try:
        done = subprocess.run(
            [program, *arguments], input=words, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr or done.stdout).strip() or str(done) if done.returncode else None
