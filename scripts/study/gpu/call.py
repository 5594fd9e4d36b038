"""One call of the script: how long it lasts, what it says, and the processes that it starts."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

START = time.monotonic()  # the minutes of a call begin here
ROOT = Path(__file__).resolve().parents[3]
STOPPING = 30.0  # seconds in which runs write their checkpoints at the end
POLL = 0.5


def say(text: str) -> None:
    print(f"{time.monotonic() - START:6.0f} s  {text}", flush=True)


class Process:
    """A process whose output goes into a file; it is stopped with all that it started."""

    def __init__(self, words: Sequence[str], output: Path, environment: dict[str, str]):
        output.parent.mkdir(parents=True, exist_ok=True)
        self.output = output
        self.started = time.monotonic()
        with output.open("w", encoding="utf-8") as file:
            # A session of its own: Ctrl-C reaches this script alone, which then stops them all.
            self.popen = subprocess.Popen(
                words,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def poll(self) -> int | None:
        return self.popen.poll()

    def interrupt(self) -> None:
        """SIGTERM to the process alone: a run then writes its checkpoint by itself."""
        if self.poll() is None:
            self.popen.terminate()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def tail(self, lines: int = 8) -> str:
        text = self.output.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])


class Call:
    """This call of the script: how long it lasts, and whether somebody stops it."""

    def __init__(self, arguments: argparse.Namespace):
        self.end = START + 60 * arguments.minutes
        self.out: Path = arguments.out
        self.python: str = arguments.python
        self.stopped = False
        self.environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment["PYTHONPATH"] = os.pathsep.join(places)
        # Each compiler would else start a process for every core.
        self.environment.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
        self.environment.setdefault("OMP_NUM_THREADS", "1")

    @property
    def left(self) -> float:
        """Seconds of work: what comes after them is for checkpoints."""
        return 0.0 if self.stopped else self.end - STOPPING - time.monotonic()

    def stop(self, number: int, _: object) -> None:
        say(f"stopping: {signal.Signals(number).name}")
        self.stopped = True

    def start(self, words: Sequence[str], output: Path) -> Process:
        return Process([self.python, *words], output, self.environment)
