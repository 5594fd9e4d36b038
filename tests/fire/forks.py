"""Commands in forks of this process, which has imported torch already: a kill costs no import."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lra.settings import guard

SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}
TOO_LONG = 120.0  # seconds; a process that takes longer hangs
PARENT_DIED = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Ending:
    """How a process ended: its exit code, or minus the signal, and what it printed."""

    code: int
    out: str
    seconds: float

    @property
    def refusal(self) -> str | None:
        """The one sentence of a refused command; None if it was not one sentence."""
        found = [line for line in self.out.splitlines() if line.startswith("error: ")]
        whole = self.code == 2 and len(found) == 1 and "Traceback" not in self.out
        return found[0] if whole else None

    def __str__(self) -> str:
        """For a report: the exit code, our own last lines of a traceback, the last line."""
        lines = [line.strip() for line in self.out.splitlines() if line.strip()]
        ours = [line for line in lines if re.match(r'File ".*/(lra|luna)/', line)]
        return f"exit code {self.code}, {' < '.join([*lines[-1:], *ours[:-4:-1]])}"


class Fork:
    """A command in a process and a session of its own."""

    def __init__(self, command: Callable[[], object], log: Path):
        self.log, self.started = log, time.monotonic()
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal that comes before the command waits for it: Python's own start is not tried here.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS.values())
        self.pid = os.fork()
        if self.pid == 0:
            _child(command, log)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS.values())

    def kill(self, signum: int) -> None:
        os.kill(self.pid, signum)  # not waited for yet, so the number is still its own

    def running(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def wait(self, limit: float = TOO_LONG) -> Ending:
        end, hung = time.monotonic() + limit, False
        while self.running():
            if time.monotonic() > end and not hung:
                hung = True
                self.kill(signal.SIGUSR1)  # which prints where it is
                time.sleep(1)
                self.kill(signal.SIGKILL)
            time.sleep(0.002)
        _, status = os.waitpid(self.pid, 0)
        out = self.log.read_text(encoding="utf-8", errors="replace")
        said = out + ("\nTraceback: it hung" if hung else "")
        return Ending(os.waitstatus_to_exitcode(status), said, time.monotonic() - self.started)


def _child(command: Callable[[], object], log: Path) -> None:
    code = 70
    try:
        ctypes.CDLL(None).prctl(PARENT_DIED, signal.SIGKILL)
        os.setsid()
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, signal.SIG_DFL)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(output, number)
        sys.stdout, sys.stderr = (
            open(n, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
            for n in (1, 2)
        )
        faulthandler.register(signal.SIGUSR1, sys.stderr, all_threads=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as Python's own start does
        code = guard(lambda: _open_to_signals(command))
        _note_modules(log)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        os._exit(code)


def _open_to_signals(command: Callable[[], object]) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS.values())
    command()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _note_modules(log: Path) -> None:
    names = "\n".join(sys.modules)
    log.with_name("modules").write_text(names, encoding="utf-8")


def import_as_children_did(log: Path) -> None:
    """What the last fork imported on its way, imported here: the next ones save that time."""
    for name in log.with_name("modules").read_text(encoding="utf-8").split():
        if name not in sys.modules and name.partition(".")[0] != "torch":
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def ended_well(ending: Ending) -> bool:
    """Finished, refused in one sentence, or stopped by a signal without a traceback."""
    stopped = ending.code in (130, 143, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
    return ("Traceback" not in ending.out) and (
        ending.code == 0 or stopped or ending.refusal is not None
    )
