"""`tune=lr`: trains the trials of a run that have not ended, and gives the run at the rate that
follows."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lra.base.errors import Diverged, UserError
from lra.base.parent import is_first
from lra.compute.solved import solved
from lra.runs.folder import LOCKED
from lra.runs.search import find
from lra.runs.trials import Outcome, outcome_of, rate_of
from lra.settings.run import Run
from lra.settings.trials import at_rate, refuse_without_trials, trials_of, words_of_trial
from lra.training.checkpoints import ending


def tuned(
    run: Run, command: str, start: Callable[[Run, str], Path], ends: float
) -> tuple[Run, dict[str, Any]]:
    """The run at its rate, and what its record says of the choice. `start` trains a run; `ends` is
    when `limit_minutes` is over, by the monotonic clock."""
    refuse_without_trials(run)
    trials = trials_of(run)
    waiting = [i for i, trial in enumerate(trials) if outcome_of(trial) is None]
    if waiting and run.processes > 1:
        raise UserError(
            f"{len(waiting)} of {len(trials)} trials of tune=lr are to be trained, and a run of "
            f"several processes trains none: start them first, "
            f"`{_command(command, run, trials[waiting[0]])}` and the others like it"
        )
    for others_first in (True, False):  # what another process trains is waited for at the end
        for i in waiting:
            trial = replace(trials[i], limit_minutes=_minutes_to(ends))
            if not others_first:
                _wait_for(trial, ends)
            if outcome_of(trial) is None:
                name = f"lr={trial.protocol.recipe.lr:g} seed={trial.seed}"
                print(f"tuning     {name}: trial {i + 1} of {len(trials)}", flush=True)
                _start(trial, _command(command, run, trial), start, others_first)
    outcomes = [outcome for outcome in map(outcome_of, trials) if outcome is not None]
    chosen = rate_of(outcomes)
    steps = sum(trial.protocol.recipe.steps for trial in trials)
    if is_first():
        _say(run, chosen, steps, outcomes)
    told = [outcome.fact() for outcome in outcomes]
    return at_rate(run, chosen), {"tuning": {"chosen": chosen, "steps": steps, "trials": told}}


def _command(command: str, run: Run, trial: Run) -> str:
    return shlex.join(words_of_trial(shlex.split(command), run, trial)) if command else ""


def _start(trial: Run, command: str, start: Callable[[Run, str], Path], leave: bool) -> None:
    """Train a trial; one that diverges has an outcome too, and one of another process is left to
    it for now."""
    try:
        start(trial, command)
    except Diverged as error:
        print(f"tuning     {error}: this rate is the worst", flush=True)
    except UserError as error:
        if not (leave and LOCKED in str(error)):
            raise
        print("tuning     another process trains it", flush=True)


def _wait_for(trial: Run, ends: float) -> None:
    folder = find(solved(trial))
    if folder is not None and outcome_of(trial) is None:
        with ending("waiting for a trial", ends - time.monotonic()), folder.lock(wait=True):
            return


def _minutes_to(ends: float) -> float | None:
    return None if math.isinf(ends) else max(ends - time.monotonic(), 1e-3) / 60


def _say(run: Run, chosen: float, steps: int, outcomes: list[Outcome]) -> None:
    tune, diverged = run.tune, sum(outcome.dev is None for outcome in outcomes)
    print(
        f"tuning     lr={chosen:g}, chosen on dev of seeds {', '.join(map(str, tune.seeds))} from "
        f"{len(tune.grid)} rates; {steps:,} steps, {steps / run.protocol.recipe.steps:.1f} times "
        "those of a run" + (f"; {diverged} of the trials diverged" if diverged else ""),
        flush=True,
    )
    ends = {min(tune.grid): "lowest", max(tune.grid): "highest"}
    if chosen in ends:
        print(
            f"note: {chosen:g} is the {ends[chosen]} rate of tune.grid: a better one may lie beyond"
        )
