"""What the trials of a run have reached, and the rate that follows (`tune=lr`)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lra.base.disk import read_json
from lra.base.errors import Diverged, UserError
from lra.compute.solved import solved
from lra.runs.folder import STATUS, RunFolder, finished
from lra.runs.search import find

if TYPE_CHECKING:
    from lra.settings.run import Run


class Outcome(NamedTuple):
    """A trial that has ended."""

    lr: float
    seed: int
    dev: float | None  # its best score; None where it diverged
    run: str  # as tables cite it
    higher_is_better: bool = True

    def fact(self) -> dict[str, Any]:
        """As a record has it."""
        return {"lr": self.lr, "seed": self.seed, "dev": self.dev, "run": self.run}


def once() -> Callable[[Run], Outcome | None]:
    """`outcome_of`, looked up once for each trial, which the seeds of a sweep share."""
    known: dict[int, tuple[Run, Outcome | None]] = {}

    def look_up(trial: Run) -> Outcome | None:
        if id(trial) not in known:  # whose run is kept, so that no other has its id
            known[id(trial)] = trial, outcome_of(trial)
        return known[id(trial)][1]

    return look_up


def settled(run: Run, outcome: Callable[[Run], Outcome | None]) -> Run | None:
    """The run whose folder is looked for: with the knobs that a search sets and the rate that its
    trials give; None while some have not ended."""
    if run.tune.name.name == "none":
        return solved(run)
    from lra.settings.trials import at_rate, trials_of

    outcomes = [outcome(trial) for trial in trials_of(run)]
    ended = [found for found in outcomes if found is not None]
    if len(ended) < len(outcomes):
        return None
    return solved(at_rate(run, rate_of(ended)))


def find_settled(
    run: Run, outcome: Callable[[Run], Outcome | None] | None = None
) -> RunFolder | None:
    """Find the folder that a run has or will have; None while that is not known. Of several runs,
    `outcome` looks trials up (`once`)."""
    known = settled(run, outcome or outcome_of)
    return None if known is None else find(known)


def outcome_of(trial: Run) -> Outcome | None:
    """None while it has not ended."""
    folder = find(solved(trial), ended=_decided)
    if folder is None:
        return None
    facts = trial.protocol.recipe.lr, trial.seed
    if (result := folder.result()) is not None:
        higher = result["metric"]["higher_is_better"]
        return Outcome(*facts, result["dev"]["score"], folder.id, higher)
    return Outcome(*facts, None, folder.id) if _diverged(folder.path) else None


def _decided(trial: Run, folder: Path) -> bool:
    return finished(trial, folder) or _diverged(folder)


def _diverged(folder: Path) -> bool:
    status = read_json(folder / STATUS) or {}
    return str(status.get("error", "")).startswith(Diverged.__name__)


def rate_of(outcomes: Sequence[Outcome]) -> float:
    """The lowest rate whose mean score is within one standard error of the best mean. A rate at
    which a seed diverged is worse than all others."""
    scores: dict[float, list[float]] = {}
    higher = all(outcome.higher_is_better for outcome in outcomes)
    for outcome in outcomes:
        dev = -math.inf if outcome.dev is None else outcome.dev if higher else -outcome.dev
        scores.setdefault(outcome.lr, []).append(dev)
    means = {rate: statistics.fmean(of_rate) for rate, of_rate in scores.items()}
    best = max(means, key=lambda rate: means[rate])
    if means[best] == -math.inf:
        raise UserError(
            f"at every rate of tune.grid={sorted(means)} a trial diverged: give it lower rates"
        )
    n = len(scores[best])
    error = statistics.stdev(scores[best]) / math.sqrt(n) if n > 1 else 0.0
    return min(rate for rate, mean in means.items() if mean >= means[best] - error)
