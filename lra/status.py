"""`lra status`: what the runs of a folder, or of a sweep, are doing; it only reads."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import fcntl
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from lra.config import UserError
from lra.disk import read_json

FRESH = 15.0  # seconds; a run that wrote its status more recently is certainly running
ORDER = ("running", "done", "to do", "interrupted", "lost", "failed")


@dataclasses.dataclass(frozen=True)
class State:
    """One run, seen from outside."""

    name: str  # the folder below the runs folder, or the overrides of a run that has none
    state: str  # one of ORDER; lost: its status says running, but nobody holds its lock
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.state:<12} {self.name}  {self.detail}".rstrip()


def add_parser(commands: Any) -> None:
    status = commands.add_parser("status", help="done, running, failed and to do, of a sweep")
    status.add_argument(
        "overrides",
        nargs="*",
        help="a sweep as for lra train -m; without it every run of the folder is shown",
    )
    status.add_argument(
        "-m", "--multirun", action="store_true", help="as lra train has it; makes no difference"
    )
    status.add_argument("--runs", default="runs", help="folder of runs, without overrides (runs)")
    status.add_argument(
        "--watch", type=float, metavar="SECONDS", help="show it again every so often, until Ctrl-C"
    )
    status.set_defaults(run=_show)


def _show(arguments: argparse.Namespace) -> None:
    while True:
        if arguments.overrides:
            states = of_sweep(arguments.overrides)
        else:
            states = of_folder(Path(arguments.runs))
        if arguments.watch is None:
            print(summary(states))
            return
        stamp = time.strftime("%H:%M:%S")
        print(f"\x1b[2J\x1b[H{stamp}\n{summary(states)}", flush=True)
        time.sleep(arguments.watch)


def summary(states: Sequence[State]) -> str:
    """Counts, then every run that needs a look; those done and to do are only counted."""
    count = Counter(s.state for s in states)
    counts = ", ".join(f"{count[s]} {s}" for s in ORDER if count[s])
    shown = [s for s in states if s.state not in ("done", "to do")]
    lines = [str(s) for s in sorted(shown, key=lambda s: (ORDER.index(s.state), s.name))]
    return "\n".join([f"{len(states)} runs: {counts}" if states else "no runs", *lines])


def of_folder(runs: Path) -> list[State]:
    """Every run that ever started below a folder."""
    if not runs.is_dir():
        raise UserError(f"{runs} does not exist; the first run makes it: lra train")
    folders = sorted(path.parent for path in runs.rglob("status.json"))
    return [of_run(folder, folder.relative_to(runs).as_posix()) for folder in folders]


def of_run(folder: Path, name: str) -> State:
    try:
        return _of_run(folder, name)
    except UserError as error:  # one damaged file must not hide the other runs
        return State(name, "failed", str(error))


def _of_run(folder: Path, name: str) -> State:
    from lra.runs import read_result

    result = read_result(folder / "result.json")
    if result is not None:
        return State(name, "done", f"{result['test']['accuracy']:.1%}")
    status = read_json(folder / "status.json")
    if status is None:
        return State(name, "to do")
    said = status["status"]
    if said == "failed":
        return State(name, "failed", status.get("error", ""))
    if said == "running":
        where = f"process {status.get('pid')} on {status.get('host')}"
        if _age(status) < FRESH or _locked(folder / "lock"):
            return State(name, "running", f"{_progress(folder, status)}  {where}".strip())
        return State(name, "lost", f"{where} is gone; the same command resumes it")
    return State(name, "interrupted", status.get("how", ""))


def _age(status: dict[str, Any]) -> float:
    """Seconds since the status was written."""
    try:
        written = datetime.fromisoformat(status["updated"])
        return abs(time.time() - written.timestamp())
    except (KeyError, TypeError, ValueError):
        return float("inf")


def _locked(lock: Path) -> bool:
    """Whether a process holds the run. The question itself takes the lock for an instant, so it is
    asked only where a run has been silent for a while and none is about to start."""
    try:
        with lock.open(encoding="utf-8") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _progress(folder: Path, status: dict[str, Any]) -> str:
    """`step 40/100 (40%), 0:00:30 left`, at the mean speed of the run, resumptions included."""
    step, steps = status.get("step"), status.get("steps")
    if not step or not steps:
        return "starting"
    done = f"step {step}/{steps} ({step / steps:.0%})"
    spent = _spent(folder / "metrics.csv")
    if spent is None:
        return done
    per_step = spent[1] / spent[0]
    return f"{done}, {timedelta(seconds=round((steps - step) * per_step))} left"


def _spent(metrics: Path) -> tuple[int, float] | None:
    """The last (step, seconds) of a metrics.csv."""
    if not metrics.exists():
        return None
    text = metrics.read_text(encoding="utf-8")
    rows = list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))
    if not rows or int(rows[-1]["step"]) == 0:
        return None
    return int(rows[-1]["step"]), float(rows[-1]["seconds"])


# ---------------------------------------------------------------------- sweeps


def of_sweep(words: Sequence[str]) -> list[State]:
    """Every job that `lra train -m <words>` would have, those without a folder too."""
    import hydra

    from lra.compose import check, initialised
    from lra.runs import find

    states = []
    with initialised():
        for job in jobs(words):
            run = check(hydra.compose("train", job))
            folder = find(run)
            if folder is None:
                states.append(State(" ".join(job), "to do", "data not prepared"))
            else:
                name = folder.path.relative_to(run.runs_dir).as_posix()
                states.append(of_run(folder.path, name))
    return states


def jobs(words: Sequence[str]) -> Iterator[list[str]]:
    """The overrides of each job, expanded as Hydra's own sweeper does; call it inside an
    initialised Hydra."""
    import hydra
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    parsed = parser.parse_overrides(list(words))
    for override in parsed:
        if override.is_sweep_override() and not override.is_discrete_sweep():
            raise UserError(
                f"{override.input_line} is for a search, whose trials are not known before: "
                "`lra status --runs` shows those there are"
            )
    fixed = [w for w, o in zip(words, parsed, strict=True) if not o.is_sweep_override()]
    composed = hydra.compose("train", fixed, return_hydra_config=True)
    params = composed.hydra.sweeper.params or {}  # of a named sweep, such as sweep=seeds
    named = [f"{key}={value}" for key, value in params.items()]
    batches = BasicSweeper.split_arguments(parser.parse_overrides([*named, *words]), None)
    for batch in batches:
        yield from batch
