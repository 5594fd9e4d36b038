"""Many runs from one command: `python train.py -m attention=luna,linear seed=1,2,3`.

Whatever the launcher, every run is a process of its own: one that crashes, is killed or runs out of
memory takes no other with it. A run that is finished is skipped without starting anything. Each job
leaves an outcome in the sweep's folder, and the command ends with a summary of them.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from lra.compose import Run, check
from lra.config import UserError
from lra.disk import read_json, write_json
from lra.runs import RunFolder

TRAIN = Path(__file__).resolve().parent.parent / "train.py"
GRACE = 60.0  # seconds a run that is told to stop has to write its checkpoint
ELSEWHERE = " is being run by "  # what a run says whose lock another process holds


@dataclasses.dataclass
class Outcome:
    """How one job of a sweep ended."""

    job: list[str]  # its overrides
    state: str  # done | skipped | elsewhere | failed
    reason: str = ""
    accuracy: float | None = None


def job(cfg: DictConfig) -> float | None:
    """What a launcher calls for each job. It never raises: a launcher would give up the others."""
    hydra = HydraConfig.get()
    words, label = list(hydra.overrides.task), f"#{hydra.job.num}"
    try:
        outcome = attempt(check(cfg), words, label)
    except UserError as error:
        outcome = Outcome(words, "failed", str(error))
    folder = _outcomes(hydra.sweep.dir)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{hydra.job.num}.json", dataclasses.asdict(outcome))
    return outcome.accuracy


def attempt(run: Run, words: list[str], label: str) -> Outcome:
    """Skip, run, or retry one job whose overrides are `words`."""
    if result := finished(run):
        return Outcome(words, "skipped", accuracy=result["test"]["accuracy"])
    reason = ""
    for _ in range(run.retries + 1):
        code, reason = _process(words, label, run.limit_minutes)
        if code == 0 and (result := finished(run)):
            return Outcome(words, "done", accuracy=result["test"]["accuracy"])
        if ELSEWHERE in reason:
            return Outcome(words, "elsewhere", reason)
        if code == 2:  # a mistake of the caller is the same at every attempt
            break
        print(f"{label} {reason}", file=sys.stderr, flush=True)
    return Outcome(words, "failed", reason)


def finished(run: Run) -> dict[str, Any] | None:
    """The result of a run that is done; costs no more than reading two files."""
    from lra.data.prepare import find

    if run.compute.solve:  # the search decides some of the options, and they identify the run
        from lra.compute import settled

        run = settled(run)
    prepared = find(run.task, max_length=run.protocol.data.max_length, data_dir=run.data_dir)
    return None if prepared is None else RunFolder(run, prepared.fingerprint).result()


def _process(words: list[str], label: str, limit_minutes: float | None) -> tuple[int, str]:
    """Run one job in its own process: its exit code and, if it failed, the first line why."""
    process = subprocess.Popen(
        [sys.executable, str(TRAIN), *words, "hydra.mode=RUN"],  # an experiment may say MULTIRUN
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches the sweep, which passes on one signal, not two
    )
    errors: list[str] = []
    readers = [
        threading.Thread(target=_echo, args=(process.stdout, label, [])),
        threading.Thread(target=_echo, args=(process.stderr, label, errors)),
    ]
    for reader in readers:
        reader.start()
    limit = None
    try:
        process.wait(None if limit_minutes is None else limit_minutes * 60)
    except subprocess.TimeoutExpired:
        limit = limit_minutes
        _stop(process)
    except BaseException:  # the sweep is being stopped, so its run is
        _stop(process)
        raise
    finally:
        for reader in readers:
            reader.join()
    return process.returncode, _reason(process.returncode, errors, limit)


def _echo(stream: Iterable[str], label: str, kept: list[str]) -> None:
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
        return f"stopped at its limit of {limit_minutes:g} minutes; the same command resumes it"
    if code < 0:
        hint = ", as the kernel does when memory runs out" if -code == signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint}"
    told = [line for line in errors if line.startswith("error: ")]
    if told:
        return told[-1].removeprefix("error: ")
    return next((line for line in reversed(errors) if line.strip()), f"exit code {code}")


class Summary(Callback):
    """Prints how the jobs of a sweep ended; the command exits with 1 if any failed."""

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        outcomes = read_outcomes(_outcomes(config.hydra.sweep.dir))
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
