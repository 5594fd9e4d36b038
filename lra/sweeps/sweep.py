"""Many runs from one command: `lra train -m attention=luna,linear seed=1,2,3`.

With every launcher, each run is a process of its own, so a run that crashes, is killed or runs out
of memory does not affect the others. A worker of joblib, which does many jobs, forks them from a
process that has imported everything (lra/sweeps/forked.py). A finished run is skipped. Each job
writes its outcome into the sweep's folder, and the command ends with a summary of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from lra.base import groups
from lra.base.config import CONFIGS, PACKAGE, PARENT, UserError, first_line, readable
from lra.base.disk import read_json, write_json
from lra.runs.folder import find, writing
from lra.settings.compose import Run, check_settings, guard
from lra.sweeps.forked import ForkedRun

Process = subprocess.Popen[str] | ForkedRun
TRAIN = ("-m", "lra", "train")  # Python's arguments for a run
CHECK_EVERY = 1.0  # seconds between looks at the process that started this one
GRACE = 60.0  # seconds for a run to write its checkpoint after it is asked to stop
LOCKED = " is being run by "  # in the error of a run whose lock another process holds


@dataclasses.dataclass
class Outcome:
    job: list[str]  # its overrides
    state: str  # done | skipped | elsewhere | failed
    reason: str = ""
    accuracy: float | None = None  # on the test set
    dev: float | None = None

    @property
    def score(self) -> float:
        """Return dev accuracy, which a search maximises; 0 for a failed run."""
        return 0.0 if self.dev is None else self.dev


def job(cfg: DictConfig) -> float:
    """Run one job for a launcher and return its score. It never raises, because a launcher would
    then give up the other jobs."""
    hydra = HydraConfig.get()
    for source in hydra.runtime.config_sources:
        if source.provider == groups.PROVIDER:  # a worker may not have the variable
            os.environ[groups.VARIABLE] = source.path
    words, label = list(hydra.overrides.task), f"#{hydra.job.num}"
    try:
        outcome = attempt(check_settings(cfg), words, label)
    except UserError as error:
        outcome = Outcome(words, "failed", str(error))
    except Exception as error:  # a bug, or submitit's warning that SLURM's limit is near
        traceback.print_exc()
        outcome = Outcome(words, "failed", f"{type(error).__name__}: {first_line(error)}")
    write_outcome(hydra.sweep.dir, hydra.job.num, outcome)
    return outcome.score


def write_outcome(sweep_dir: str, number: int, outcome: Outcome) -> None:
    folder = _outcomes(sweep_dir)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{number}.json", dataclasses.asdict(outcome))


def result_of_dead_worker(
    sweep_dir: str, number: int, words: Sequence[str], reason: str
) -> JobReturn:
    """Return for a launcher the result of a job whose worker died: failed, unless its outcome was
    already written."""
    written = read_json(_outcomes(sweep_dir) / f"{number}.json")
    outcome = Outcome(**written) if written else Outcome(list(words), "failed", reason)
    write_outcome(sweep_dir, number, outcome)
    return JobReturn(words, status=JobStatus.COMPLETED, _return_value=outcome.score)


def attempt(run: Run, words: list[str], label: str) -> Outcome:
    """Skip, run or retry the job with the overrides `words`."""
    if not run.rerun and (outcome := _finished(run, words, "skipped")):
        return outcome
    # A worker of joblib does many jobs. A run of several processes is never forked, for Lightning
    # starts the others by the command line.
    fork = multiprocessing.parent_process() is not None and run.processes == 1
    reason = ""
    for _ in range(run.retries + 1):
        code, reason = _process(words, label, run.limit_minutes, fork=fork)
        if code == 0 and (outcome := _finished(run, words, "done")):
            return outcome
        if LOCKED in reason:
            return Outcome(words, "elsewhere", reason)
        if code == 0:
            reason = "it ended without its record: was its code edited during the sweep?"
        if code == 2:  # a mistake of the user fails at every attempt
            break
        print(f"{label} {reason}", file=sys.stderr, flush=True)
    return Outcome(words, "failed", reason)


def _finished(run: Run, words: list[str], state: str) -> Outcome | None:
    folder = find(run)
    if folder is None or (result := folder.result()) is None:
        return None
    return Outcome(words, state, "", result["test"]["accuracy"], result["dev"]["accuracy"])


def _process(
    words: list[str], label: str, limit_minutes: float | None, *, fork: bool = False
) -> tuple[int, str]:
    """Run one job in its own process; return its exit code and, if it failed, the reason."""
    words = [*words, "hydra.mode=RUN"]  # an experiment may set MULTIRUN
    environment = child_environment()
    process = ForkedRun(["train", *words], environment) if fork else _start(words, environment)
    errors: list[str] = []
    readers = [
        threading.Thread(target=_echo, args=(stream, label, lines), daemon=True)
        for stream, lines in ((process.stdout, []), (process.stderr, errors))
    ]
    for reader in readers:
        reader.start()
    late = False
    try:
        late = not _wait(process, math.inf if limit_minutes is None else limit_minutes * 60)
        if late:
            _stop(process)
    except BaseException:  # the sweep is being stopped
        _stop(process)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):  # processes it left behind, such as DDP's
            os.killpg(process.pid, signal.SIGKILL)
        for reader in readers:
            reader.join(GRACE)
    return process.returncode, _reason(process.returncode, errors, limit_minutes if late else None)


def child_environment() -> dict[str, str]:
    """Return the environment for a run that imports this very code, wherever it starts, and ends
    after this process."""
    # PYTHONSAFEPATH: import nothing from the working directory.
    environment = os.environ | {PARENT: str(os.getpid()), "PYTHONSAFEPATH": "1"}
    if not CONFIGS.is_relative_to(PACKAGE):  # a clone; another version may be installed
        paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return environment


def _start(words: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    # SLURM may send its warning (USR2) to all processes of a job; the run waits for our SIGTERM.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    process = subprocess.Popen(
        [sys.executable, *TRAIN, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches the sweep alone, which passes on one signal
        env=environment,
    )
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
    return process


def _wait(process: Process, seconds: float) -> bool:
    end = time.monotonic() + seconds
    launcher = multiprocessing.parent_process()  # of a worker of joblib
    while time.monotonic() < end:
        if launcher is not None and launcher.pid != os.getppid():  # it has died
            _stop(process)
            os._exit(1)  # or this worker would start the next job of a dead sweep
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(CHECK_EVERY, end - time.monotonic()))
            return True
    return False


def _echo(stream: IO[str], label: str, lines: list[str]) -> None:
    with stream:
        for line in stream:
            print(f"{label} {line}", end="", flush=True)
            lines.append(line.rstrip())


def _stop(process: Process) -> None:
    """Send SIGTERM, upon which a run writes a checkpoint; then SIGKILL to its whole session."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _reason(code: int, errors: list[str], limit_minutes: float | None) -> str:
    if code == 0:
        return ""
    if limit_minutes is not None:
        return f"interrupted at its limit of {limit_minutes:g} minutes; the same command resumes it"
    if code < 0:
        hint = ", as the kernel does when memory runs out" if -code == signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint}"
    messages = [line for line in errors if line.startswith("error: ")]
    if messages:
        return messages[-1].removeprefix("error: ")
    # The first line of the last exception's message, which may have several, as CUDA's do.
    traces = [i for i, line in enumerate(errors) if line.startswith("Traceback (")]
    below = errors[traces[-1] + 1 :] if traces else []
    message = next((line for line in below if line and not line.startswith(" ")), None)
    return message or next(filter(str.strip, reversed(errors)), f"exit code {code}")


class Summary(Callback):
    """Hydra callback that prints how the jobs of a sweep ended; exits with 1 if any failed.

    It raises SystemExit because Hydra turns other exceptions of callbacks into warnings."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        folder = Path(config.hydra.sweep.dir)

        def make() -> None:  # Hydra and its launchers would fail with a traceback
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)

        if code := guard(make):
            raise SystemExit(code)

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        outcomes = read_outcomes(_outcomes(config.hydra.sweep.dir))
        if not outcomes:
            print("error: this sweep has no jobs: does a glob match nothing?", file=sys.stderr)
            raise SystemExit(2)
        print(summarise(outcomes))
        if any(o.state == "failed" for o in outcomes):
            raise SystemExit(1)


def read_outcomes(folder: Path) -> list[Outcome]:
    outcomes = []
    for path in sorted(folder.glob("*.json"), key=lambda p: int(p.stem)):
        with readable(path, "remove it"):
            outcomes.append(Outcome(**(read_json(path) or {})))
    return outcomes


def summarise(outcomes: list[Outcome]) -> str:
    count = Counter(o.state for o in outcomes)
    words = {"done": "done", "skipped": "finished before", "elsewhere": "running elsewhere"}
    parts = [f"{count[state]} {word}" for state, word in words.items() if count[state]]
    shared = set.intersection(*(set(o.job) for o in outcomes)) if len(outcomes) > 1 else set()
    failed = [
        f"  failed  {' '.join(w for w in o.job if w not in shared)}: {o.reason}"
        for o in outcomes
        if o.state == "failed"
    ]
    if failed:
        parts.append(f"{len(failed)} failed")
    return "\n".join([f"sweep of {len(outcomes)}: {', '.join(parts)}", *failed])


def _outcomes(sweep_dir: str) -> Path:
    return Path(sweep_dir) / "outcomes"
