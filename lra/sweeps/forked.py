"""Runs forked from a process that has imported everything: importing torch and Lightning takes
longer than a short run.

The process is the fork server of Python's multiprocessing, one per worker of a sweep. It only
imports, so it has no threads and no state that a run could inherit; each run remains a process.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import IO


class ForkedRun:
    """`lra <words>` as a fork, with what a sweep uses of subprocess.Popen."""

    def __init__(self, words: Sequence[str], environment: dict[str, str]):
        # A fork repeats the start method of this process, but knows no joblib, which has its own.
        multiprocessing.set_start_method("forkserver", force=True)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["lra.training.run"])
        (out, its_out), (errors, its_errors) = context.Pipe(False), context.Pipe(False)
        arguments = (list(words), environment, its_out, its_errors)
        self._process = context.Process(target=_main, args=arguments)
        self._process.start()
        self.pid = self._process.pid or 0
        self.stdout, self.stderr = _text(out), _text(errors)
        its_out.close()
        its_errors.close()

    @property
    def returncode(self) -> int:
        return self._process.exitcode or 0

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("lra", timeout or 0)
        return self._process.exitcode

    def send_signal(self, signum: int) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, signum)


def _text(end: Connection) -> IO[str]:
    stream = os.fdopen(os.dup(end.fileno()), encoding="utf-8", errors="replace")
    end.close()
    return stream


def _main(
    words: list[str], environment: dict[str, str], out: Connection, errors: Connection
) -> None:
    """Give the fork its own session, output and environment, as a new process has."""
    os.setsid()
    for number, end in ((1, out), (2, errors)):
        os.dup2(end.fileno(), number)
        end.close()
    # Those that exist were made for the server's output, which may be a file and not a pipe.
    sys.stdout, sys.stderr = (
        open(number, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
        for number in (1, 2)
    )
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["lra", *words]
    runpy.run_module("lra", run_name="__main__")  # ends with the exit code
