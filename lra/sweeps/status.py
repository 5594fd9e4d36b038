"""`lra status`: the state of the runs of a folder or of a sweep; it only reads."""

from __future__ import annotations

import argparse
import fcntl
import itertools
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from lra.base.config import Tuned
from lra.base.disk import is_running, read_json
from lra.base.errors import UserError, printable, readable
from lra.runs.folder import DEBUG, PHASE_ONE, RESULT, STATUS, read_metrics, read_result, score_of
from lra.runs.trials import find_settled, once
from lra.sweeps.shard import KEY, is_own

FRESH = 15.0  # seconds; a run whose status is younger than this is running
ORDER = ("running", "done", "to do", "interrupted", "lost", "failed")


class RunState(NamedTuple):
    name: str  # its folder within the runs folder, or its overrides where it has none
    state: str  # one of ORDER; lost: its status says running, but no process holds its lock
    detail: str = ""


def add_arguments(status: argparse.ArgumentParser) -> None:
    words = "settings of a sweep, as for lra train -m; without them, all runs of --runs"
    status.add_argument("overrides", nargs="*", help=words)
    status.add_argument("-m", "--multirun", action="store_true", help="allowed; has no effect")
    status.add_argument("--runs", default="runs", help="folder of runs (default: runs)")
    status.set_defaults(run=_show)


def _show(arguments: argparse.Namespace) -> None:
    words = arguments.overrides
    if others := [word for word in words if "=" not in word and not word.startswith("~")]:
        raise UserError(f"'{others[0]}' is no setting: if it is a folder, write --runs {others[0]}")
    print(summary(of_sweep(words) if words else of_folder(Path(arguments.runs))))


def summary(states: Sequence[RunState]) -> str:
    """Count the runs per state, and show each that is neither done nor to do."""
    count = Counter(s.state for s in states)
    counts = ", ".join(f"{count[s]} {s}" for s in ORDER if count[s])
    shown = [s for s in states if s.state not in ("done", "to do")]
    shown.sort(key=lambda s: (ORDER.index(s.state), s.name))
    lines = [printable(f"{s.state:<12} {s.name}  {s.detail}".rstrip()) for s in shown]
    number = f"{len(states)} run{'s' * (len(states) != 1)}: {counts}" if states else "no runs"
    return "\n".join([number, *lines])


def of_folder(runs: Path) -> list[RunState]:
    if not runs.is_dir():
        raise UserError(f"{runs} does not exist; the first run makes it: lra train")
    folders = sorted(path.parent for path in runs.rglob(STATUS))
    return [of_run(folder, folder.relative_to(runs).as_posix()) for folder in folders]


def of_run(folder: Path, name: str) -> RunState:
    try:
        with readable(folder / STATUS, "remove it and run again"):
            return RunState(name, *_state_of(folder))
    except UserError as error:  # one damaged file must not hide the other runs
        return RunState(name, "failed", str(error))


def _state_of(folder: Path) -> tuple[str, str]:
    for file in (RESULT, PHASE_ONE, DEBUG):
        if (result := read_result(folder / file)) is not None:
            return "done", score_of(result)
    status = read_json(folder / STATUS)
    if status is None:
        return "to do", ""
    if status["status"] != "running":
        failed = status["status"] == "failed"
        return "failed" if failed else "interrupted", status.get("error" if failed else "how", "")
    where = f"process {status['pid']} on {status['host']}"
    dead = status["host"] == socket.gethostname() and not is_running(str(status["pid"]))
    silent = abs(time.time() - datetime.fromisoformat(status["updated"]).timestamp()) > FRESH
    if (silent or dead) and not _locked(folder / "lock"):
        return "lost", f"{where} is gone; the same command resumes it"
    return "running", f"{_progress(folder, status)}  {where}"


def _locked(lock: Path) -> bool:
    """Tell whether a process holds the lock of a run. This takes the lock for an instant, so only
    runs that have been silent for a while, or whose process has ended, are asked."""
    try:
        with lock.open(encoding="utf-8") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    return False


def _progress(folder: Path, status: dict[str, Any]) -> str:
    """`step 40/100 (40%), 0:00:30 left`, at the mean speed since the first row of metrics.csv: the
    steps before it may have compiled."""
    step, steps = status.get("step"), status.get("steps")
    if not step or not steps:
        return "starting"
    done = f"step {step}/{steps} ({step / steps:.0%})"
    points = [(int(r["step"]), float(r["seconds"])) for r in read_metrics(folder / "metrics.csv")]
    if not points:
        return done
    (first, before), (last, seconds) = points[0], points[-1]
    if first == last:  # a single row
        first, before = 0, 0.0
    per_step = (seconds - before) / (last - first)
    return f"{done}, {timedelta(seconds=round((steps - step) * per_step))} left"


def of_sweep(words: Sequence[str]) -> list[RunState]:
    """Return the state of every job of `lra train -m <words>`; refused settings make one fail."""
    import hydra

    from lra.settings.compose import check_settings
    from lra.settings.search_path import initialised

    states, outcome = list[RunState](), once()
    with initialised():
        for job in jobs(words):
            try:
                run = check_settings(hydra.compose("train", job))
                folder = find_settled(run, outcome)
            except UserError as error:  # one that is refused must not hide the others
                states.append(RunState(" ".join(job), "failed", str(error)))
                continue
            if folder is None:
                chooses = run.tune.name is not Tuned.none
                why = "its rate is not chosen yet" if chooses else "data not prepared"
                states.append(RunState(" ".join(job), "to do", why))
            else:
                name = folder.path.relative_to(run.runs_dir).as_posix()
                states.append(of_run(folder.path, name))
    return states


def jobs(words: Sequence[str], *, multirun: bool = True) -> Iterator[list[str]]:
    """Yield the overrides of each job as Hydra's own sweeper expands them; without `multirun` (-m)
    only an experiment that asks for a sweep is one. Call it inside an initialised Hydra."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.types import RunMode

    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    parsed = parser.parse_overrides(list(words))
    fixed = [w for w, o in zip(words, parsed, strict=True) if not o.is_sweep_override()]
    composed = hydra.compose("train", fixed, return_hydra_config=True)
    if not multirun and composed.hydra.mode is not RunMode.MULTIRUN:
        yield list(words)
        return
    params = composed.hydra.sweeper.params or {}  # of a named sweep, such as sweep=seeds
    named = parser.parse_overrides([f"{key}={value}" for key, value in params.items()])
    axes: dict[str, list[str]] = {}
    for override in [*named, *parsed]:  # the later of two wins
        key = override.get_key_element()
        if override.is_discrete_sweep():
            values = list(override.sweep_string_iterator())
        elif override.is_sweep_override():
            raise UserError(
                f"{override.input_line} is for a search, whose trials are not known beforehand: "
                "give it a value; `lra status --runs` shows the trials that have started"
            )
        else:
            values = [override.get_value_element_as_str()]
        axes[key] = [f"{key}={value}" for value in values]
    every = itertools.product(*axes.values())
    yield from (list(job) for i, job in enumerate(every) if is_own(composed.get(KEY), i))
