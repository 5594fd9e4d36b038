"""Many runs from one command: `lra train -m attention=luna,linear seed=1,2,3`.

Whatever the launcher, every run is a process of its own: one that crashes, is killed or runs out of
memory takes no other with it. A run that is finished is skipped without starting anything. Each job
leaves an outcome in the sweep's folder, and the command ends with a summary of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
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

from lra import groups, parent
from lra.compose import OVERRIDES, Run, check, guard
from lra.config import UserError, first_line
from lra.disk import read_json, write_json
from lra.runs import find, writing

TRAIN = ("-m", "lra", "train")  # what Python is asked for each run
GRACE = 60.0  # seconds that a run has to write its checkpoint after it is asked to stop
LOOK = 1.0  # seconds between looks at whether the sweep itself still lives
ELSEWHERE = " is being run by "  # in the error of a run that another process holds


@dataclasses.dataclass
class Outcome:
    """How one job of a sweep ended."""

    job: list[str]  # its overrides
    state: str  # done | skipped | elsewhere | failed
    reason: str = ""
    accuracy: float | None = None  # on the test set
    dev: float | None = None

    @property
    def score(self) -> float:
        """What a search maximises; a run that failed counts as 0."""
        return 0.0 if self.dev is None else self.dev


def job(cfg: DictConfig) -> float:
    """What a launcher calls for each job: its score. It never raises, because a launcher would then
    give up the other jobs."""
    hydra = HydraConfig.get()
    for source in hydra.runtime.config_sources:
        if source.provider == groups.PROVIDER:  # a worker may have started without it
            os.environ[groups.VARIABLE] = source.path
    words, label = list(hydra.overrides.task), f"#{hydra.job.num}"
    try:
        outcome = attempt(check(cfg), words, label)
    except UserError as error:
        outcome = Outcome(words, "failed", str(error))
    except Exception as error:  # a bug, or submitit says that SLURM's limit is near
        traceback.print_exc()
        outcome = Outcome(words, "failed", f"{type(error).__name__}: {first_line(error)}")
    note(hydra.sweep.dir, hydra.job.num, outcome)
    return outcome.score


def note(sweep_dir: str, number: int, outcome: Outcome) -> None:
    """Write the outcome of a job where the summary of the sweep finds it."""
    folder = _outcomes(sweep_dir)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{number}.json", dataclasses.asdict(outcome))


def lost(sweep_dir: str, number: int, words: Sequence[str], reason: str) -> JobReturn:
    """For a launcher: the result of a job whose worker died. It has failed, unless it wrote its
    outcome before."""
    known = read_json(_outcomes(sweep_dir) / f"{number}.json")
    outcome = Outcome(**known) if known else Outcome(list(words), "failed", reason)
    note(sweep_dir, number, outcome)
    return JobReturn(words, status=JobStatus.COMPLETED, _return_value=outcome.score)


def attempt(run: Run, words: list[str], label: str) -> Outcome:
    """Skip, run, or retry one job whose overrides are `words`."""
    if result := finished(run):
        return _succeeded(words, "skipped", result)
    reason = ""
    for _ in range(run.retries + 1):
        code, reason = _process(words, label, run.limit_minutes)
        if code == 0 and (result := finished(run)):
            return _succeeded(words, "done", result)
        if ELSEWHERE in reason:
            return Outcome(words, "elsewhere", reason)
        if code == 2:  # a mistake of the caller is the same at every attempt
            break
        print(f"{label} {reason}", file=sys.stderr, flush=True)
    return Outcome(words, "failed", reason)


def _succeeded(words: list[str], state: str, result: dict[str, Any]) -> Outcome:
    accuracies = {"accuracy": result["test"]["accuracy"], "dev": result["dev"]["accuracy"]}
    return Outcome(words, state, **accuracies)


def finished(run: Run) -> dict[str, Any] | None:
    """The result of a run that is done, or None; reads two files at most."""
    folder = find(run)
    return None if folder is None else folder.result()


def _process(words: list[str], label: str, limit_minutes: float | None) -> tuple[int, str]:
    """Run one job in its own process: its exit code and, if it failed, the first line why."""
    # SLURM may send its warning to all processes of a job: the run waits for the sweep's SIGTERM.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    process = subprocess.Popen(
        [sys.executable, *TRAIN, *words, "hydra.mode=RUN"],  # an experiment may say MULTIRUN
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches the sweep, which passes on one signal, not two
        env={k: v for k, v in parent.environment().items() if k != OVERRIDES},  # they are in words
    )
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
    errors: list[str] = []
    readers = [
        threading.Thread(target=_echo, args=(process.stdout, label, []), daemon=True),
        threading.Thread(target=_echo, args=(process.stderr, label, errors), daemon=True),
    ]
    for reader in readers:
        reader.start()
    limit = None
    try:
        if not _wait(process, math.inf if limit_minutes is None else limit_minutes * 60):
            limit = limit_minutes
            _stop(process)
    except BaseException:  # the sweep is being stopped, so its run is
        _stop(process)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):  # what it left behind, as DDP's processes
            os.killpg(process.pid, signal.SIGKILL)
        for reader in readers:
            reader.join(GRACE)
    return process.returncode, _reason(process.returncode, errors, limit)


def _wait(process: subprocess.Popen[str], seconds: float) -> bool:
    """Whether the process ended by itself in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if parent.is_gone():
            _stop(process)
            os._exit(1)  # a joblib worker would go on with the next job of a sweep that has ended
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(LOOK, end - time.monotonic()))
            return True
    return False


def _echo(stream: IO[str], label: str, kept: list[str]) -> None:
    with stream:
        for line in stream:
            print(f"{label} {line}", end="", flush=True)
            kept.append(line.rstrip())


def _stop(process: subprocess.Popen[str]) -> None:
    """SIGTERM, on which a run writes a checkpoint; then SIGKILL for the whole session."""
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
    printed = (line for line in reversed(errors) if line.strip())
    return _exception(errors) or next(printed, f"exit code {code}")


def _exception(errors: list[str]) -> str | None:
    """The line that names the last exception. Its message may have more lines, as CUDA's do."""
    traces = [i for i, line in enumerate(errors) if line.startswith("Traceback (")]
    below = errors[traces[-1] + 1 :] if traces else []
    return next((line for line in below if line and not line.startswith(" ")), None)


class Summary(Callback):
    """Prints how the jobs of a sweep ended; the command exits with 1 if any failed.

    Hydra turns a callback's exceptions into warnings, except SystemExit."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        folder = Path(config.hydra.sweep.dir)

        def make() -> None:  # Hydra and its launchers would do it with a traceback
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)

        if code := guard(make):
            raise SystemExit(code)

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        outcomes = read_outcomes(_outcomes(config.hydra.sweep.dir))
        if not outcomes:
            print("error: this sweep has no jobs; does a glob match nothing?", file=sys.stderr)
            raise SystemExit(2)
        print(summarise(outcomes))
        if any(o.state == "failed" for o in outcomes):
            raise SystemExit(1)


def read_outcomes(folder: Path) -> list[Outcome]:
    paths = sorted(folder.glob("*.json"), key=lambda p: int(p.stem))
    return [Outcome(**facts) for p in paths if (facts := read_json(p)) is not None]


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
