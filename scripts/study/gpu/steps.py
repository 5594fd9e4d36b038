"""What comes before the full runs: the environment in words, the tests that need a GPU, speeds."""

from __future__ import annotations

import os
import time
from importlib.util import find_spec
from pathlib import Path

from gpu.call import POLL, ROOT, Call, Process, say

STEPS = ("environment", "tests", "bench")  # before the queue, in this order
EARLY = STEPS[:2]  # those that run while the queue is read
LIMITS = {"environment": 90.0, "tests": 240.0, "bench": 300.0}  # seconds
ENDED_WELL = "ended well"  # the last line of a step's output begins so
GPU_TEST = "mark.gpu"
WORKERS = 8  # that test side by side; each has a context on the card


def words_of(step: str, out: Path) -> list[str]:
    """The words of a step behind the interpreter; none where it cannot be done here."""
    if step == "environment":
        return ["-m", "torch.utils.collect_env"]
    if step == "tests":
        files = (ROOT / "tests").rglob("test_*.py")
        marked = [file for file in files if GPU_TEST in file.read_text(encoding="utf-8")]
        # Their folders only: other tests would be imported, with packages that they alone need.
        folders = sorted({str(file.parent.relative_to(ROOT)) for file in marked})
        # Nearly all of their time is Triton's, which compiles on one processor.
        spread = ["-n", str(min(WORKERS, os.cpu_count() or 1))] if find_spec("xdist") else []
        return ["-m", "pytest", "-m", "gpu", *spread, *folders]
    return ["-m", "lra", "bench", "gpu", "--write", str(out)]


def is_done(step: str, out: Path) -> bool:
    file = out / f"{step}.txt"
    if not file.exists():
        return False
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return bool(lines) and lines[-1].startswith(ENDED_WELL)


def begin_step(step: str, call: Call) -> Process | None:
    """Start a step, unless it has ended well or there is no time."""
    words = words_of(step, call.out)
    if not words or is_done(step, call.out) or call.left < 10:
        return None
    say(f"{step}: started")
    return call.start(words, call.out / f"{step}.txt")


def finish_step(step: str, process: Process | None, call: Call) -> None:
    """Wait for the end of a step that was begun, no longer than its limit and this call."""
    if process is None:
        return
    while process.poll() is None and process.seconds < LIMITS[step] and call.left > 0:
        time.sleep(POLL / 5)
    code = process.poll()
    process.kill()  # with what it may have left behind
    took = f"after {process.seconds:.0f} s"
    if code == 0:
        last = f"{ENDED_WELL} {took}"
    elif code is None:
        last = f"not finished {took}"
    else:
        last = f"FAILED with exit code {code} {took}"
    with process.output.open("a", encoding="utf-8") as file:
        file.write(f"\n{last}\n")
    say(f"{step}: {last}, see {process.output.name}")
