"""Many runs from one command: `lra train -m attention=luna,linear seed=1,2,3`.

With every launcher, each run is a process of its own, so a run that crashes, is killed or runs out
of memory does not affect the others. It is forked from a process that has imported everything, once
per worker, because importing torch and Lightning takes longer than a short run. It is given the
settings that its worker has composed and checked. A finished run is skipped.
Each job writes its outcome into the sweep's folder, and the command ends with a summary of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import re
import signal
import sys
import threading
import traceback
import types
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from lra.base import groups
from lra.base.disk import read_json, write_atomically, write_json
from lra.base.errors import UserError, first_line
from lra.base.parent import is_first
from lra.runs.folder import LOCKED, read_result, writing
from lra.runs.search import other_source
from lra.runs.trials import find_settled
from lra.settings.command import (
    callbacks_of,
    given_words,
    moving_nothing,
    public,
    typed,
    without_private,
)
from lra.settings.compose import check_settings
from lra.settings.errors import guard
from lra.settings.run import Run
from lra.sweeps.check import check_sweep
from lra.sweeps.shard import KEY, is_own, without_shard

# What runs are forked from. multiprocessing wants its name, and an import here would take torch.
FORKED = "lra.sweeps.forked"
CHECK_EVERY = 1.0  # seconds between looks at the process that started this one
GRACE = 60.0  # seconds for a run to write its checkpoint after it is asked to stop
RECORD = "record: "  # begins the last line of a finished run
# In the output of a run: a sentence of ours, or the first line of an exception's message.
PROBLEM = re.compile(r"error: (.+)|(interrupted .+|[\w.]*(?:Error|Exception|Interrupt)\b.*)")
OF_OTHERS = "of other shards"
STATES = ("done", "finished before", "running elsewhere", OF_OTHERS, "failed")


@dataclasses.dataclass
class Outcome:
    job: list[str]  # its overrides
    state: str  # one of STATES
    reason: str = ""
    score: float = 0.0  # on dev, which a search maximises: negative where lower is better
    other_code: bool = False  # whether other source than today's made it


def job(cfg: DictConfig) -> float:
    """Run one job for a launcher and return its score. It never raises, because a launcher would
    then give up the other jobs."""
    hydra = HydraConfig.get()
    for source in hydra.runtime.config_sources:
        if source.provider == groups.PROVIDER:  # a worker may not have the variable
            os.environ[groups.VARIABLE] = source.path
    words = without_shard(given_words())
    if not is_own(cfg.get(KEY), hydra.job.num):
        write_outcome(cfg, hydra.sweep.dir, hydra.job.num, Outcome(words, OF_OTHERS))
        return 0.0
    try:
        outcome = attempt(check_settings(cfg), words, f"#{hydra.job.num}")
    except UserError as error:
        outcome = Outcome(words, "failed", str(error))
    except Exception as error:  # a bug, or submitit's warning that SLURM's limit is near
        traceback.print_exc()
        outcome = Outcome(words, "failed", f"{type(error).__name__}: {first_line(error)}")
    if is_first():
        write_outcome(cfg, hydra.sweep.dir, hydra.job.num, outcome)
    elif outcome.state == "failed":  # the first process waits for this one: SLURM ends it
        os._exit(1)
    return outcome.score


def _to_maximise(result: dict[str, Any]) -> float:
    score = float(result["dev"]["score"])
    return score if result["metric"]["higher_is_better"] else -score


def attempt(run: Run, words: list[str], label: str) -> Outcome:
    """Skip, run or retry the job with the overrides `words`."""
    folder = None if run.rerun else find_settled(run)
    if folder is not None and (result := folder.result()) is not None:
        score, other = _to_maximise(result), bool(other_source(folder))
        return Outcome(words, "finished before", score=score, other_code=other)
    reason = ""
    several = int(os.environ.get("SLURM_NTASKS", 1)) > 1  # which would try at different times
    for _ in range(1 if several else run.retries + 1):
        code, lines = run_alone(run, words, label)
        if code == 0 and not is_first():
            return Outcome(words, "done")
        if code == 0:
            record = next(line for line in reversed(lines) if line.startswith(RECORD))
            result = read_result(Path(record.removeprefix(RECORD))) or {}
            return Outcome(words, "done", score=_to_maximise(result))
        reason = _reason(code, lines)
        if LOCKED in reason:
            return Outcome(words, "running elsewhere", reason)
        if code == 2:  # a mistake of the user fails at every attempt
            break
        print(f"{label} {reason}", file=sys.stderr, flush=True)
    return Outcome(words, "failed", reason)


def _reason(code: int, lines: list[str]) -> str:
    """Say why a run failed: by its exit code, or by what it printed."""
    if code < 0:
        hint = ", as the kernel does when memory runs out" if -code == signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint}"
    problems = [match[1] or match[2] for line in lines if (match := PROBLEM.match(line))]
    return problems[-1] if problems else f"exit code {code}"


def run_alone(run: Run, words: list[str], label: str) -> tuple[int, list[str]]:
    """Run one job in a process of its own; return its exit code and the lines that it printed."""
    # A fork repeats the start method of this process, but knows no joblib, which has its own.
    multiprocessing.set_start_method("forkserver", force=True)
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([FORKED])
    output, its_output = forks.Pipe(duplex=False)
    job = [*words, "hydra.mode=RUN"]  # an experiment may set MULTIRUN
    facts = run, typed("train", words, run.callbacks), job, dict(os.environ), its_output
    process = forks.Process(target=_run, args=facts)
    # SLURM may send its warning (USR2) to all processes of a job; the run waits for our SIGTERM.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    process.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
    its_output.close()
    lines: list[str] = []
    reader = threading.Thread(target=_echo, args=(output, label, lines), daemon=True)
    reader.start()
    launcher, orphaned = multiprocessing.parent_process(), False  # of a worker of joblib
    try:
        while process.exitcode is None and not orphaned:
            process.join(CHECK_EVERY)
            orphaned = launcher is not None and launcher.pid != os.getppid()
    finally:
        if process.exitcode is None:  # the sweep is being stopped
            process.terminate()  # upon which a run writes a checkpoint
            process.join(GRACE)
        with contextlib.suppress(ProcessLookupError):  # with what it left behind, such as DDP's
            os.killpg(process.pid or 0, signal.SIGKILL)
        reader.join(GRACE)
    if orphaned:
        os._exit(1)  # or this worker would start the next job of a dead sweep
    return process.exitcode or 0, lines


def _run(
    run: Run, command: str, words: list[str], environment: dict[str, str], output: Connection
) -> None:
    """Be `lra train <words>`, in a fork: with the session, environment and output of its own that a
    new process has."""
    os.setsid()  # Ctrl-C reaches the sweep alone, which passes on one signal
    for number in (1, 2):
        os.dup2(output.fileno(), number)
    output.close()
    sys.stdout, sys.stderr = (open(n, "w", 1, "utf-8", closefd=False) for n in (1, 2))  # noqa: SIM115
    os.environ.clear()
    # With this Lightning's other processes import the same code, wherever they start.
    code = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
    os.environ.update(environment | code)
    # With these Lightning's other processes are `python -m lra train <words>`.
    sys.argv = ["lra", "train", *words]
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    main.__spec__ = find_spec("lra.__main__")
    from lra.sweeps.forked import train

    def begin() -> None:
        groups.folders()  # its files are plug-ins from now on, also for luna, which knows no folder
        train(run, command)

    sys.exit(guard(begin))


def _echo(output: Connection, label: str, lines: list[str]) -> None:
    with os.fdopen(os.dup(output.fileno()), encoding="utf-8", errors="replace") as stream:
        output.close()
        for line in stream:
            print(f"{label} {line}", end="", flush=True)
            lines.append(line.rstrip())


def _folder(sweep_dir: str) -> Path:
    folder = Path(sweep_dir, "outcomes")
    with writing(Path(sweep_dir)):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_outcome(cfg: DictConfig, sweep_dir: str, number: int, outcome: Outcome) -> None:
    job = public(outcome.job, callbacks_of(cfg))
    with writing(Path(sweep_dir)):
        write_json(
            _folder(sweep_dir) / f"{number}.json", dataclasses.asdict(outcome) | {"job": job}
        )


def result_of_dead_worker(
    config: DictConfig, number: int, words: Sequence[str], reason: str
) -> JobReturn:
    """Return for a launcher the result of a job whose worker died: failed, unless its outcome was
    already written."""
    sweep_dir = config.hydra.sweep.dir
    written = read_json(_folder(sweep_dir) / f"{number}.json")
    outcome = Outcome(**written) if written else Outcome(list(words), "failed", reason)
    write_outcome(config, sweep_dir, number, outcome)
    result = JobReturn(words, status=JobStatus.COMPLETED)
    result.return_value = outcome.score
    return result


class Summary(Callback):
    """Hydra callback that checks a sweep before its first job, and prints how its jobs ended; exits
    with 1 if any failed.

    It raises SystemExit because Hydra turns other exceptions of callbacks into warnings."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        # Hydra and its launchers would fail with a traceback.
        if code := guard(lambda: self._prepare(config)):
            raise SystemExit(code)

    def _prepare(self, config: DictConfig) -> None:
        check_sweep(list(config.hydra.overrides.task), config.hydra.sweeper.get("_target_", ""))
        _folder(config.hydra.sweep.dir)

    def on_job_start(self, config: DictConfig, **_: Any) -> None:
        """Hydra has written what it composed into multirun.yaml: take out what is private."""
        file = Path(config.hydra.sweep.dir, "multirun.yaml")
        if file.exists() and (
            any(config.logger.values()) or [*moving_nothing(callbacks_of(config))]
        ):
            text = OmegaConf.to_yaml(without_private(cast(DictConfig, OmegaConf.load(file))))
            write_atomically(file, text.encode())

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        if sys.exc_info()[0]:  # Hydra 1.4 calls this after what ends a sweep early, too
            return
        files = sorted(_folder(config.hydra.sweep.dir).glob("*.json"), key=lambda f: int(f.stem))
        if not files:
            print("error: this sweep has no jobs: does a glob match nothing?", file=sys.stderr)
            raise SystemExit(2)
        outcomes = [Outcome(**(read_json(file) or {})) for file in files]
        print(summarise(outcomes))
        if any(outcome.state == "failed" for outcome in outcomes):
            raise SystemExit(1)


def summarise(outcomes: list[Outcome]) -> str:
    count = Counter(outcome.state for outcome in outcomes)
    parts = [f"{count[state]} {state}" for state in STATES if count[state]]
    lines = [f"sweep of {len(outcomes)}: {', '.join(parts)}"]
    if n := sum(outcome.other_code for outcome in outcomes):
        lines[0] += f" ({n} by other code: rerun=true makes them anew)"
    shared = set.intersection(*(set(o.job) for o in outcomes)) if len(outcomes) > 1 else set()
    for outcome in outcomes:
        if outcome.state == "failed":
            words = " ".join(word for word in outcome.job if word not in shared)
            lines.append(f"  failed  {words}: {outcome.reason}")
    return "\n".join(lines)
