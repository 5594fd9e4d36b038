"""The trials of a run whose learning rate is chosen on dev (`tune=lr`): ordinary runs, made of the
config of the run itself, at each rate of the grid, with each seed that is not reported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lra.base.config import Dev
from lra.base.errors import UserError
from lra.settings.compose import check_settings
from lra.settings.run import Run

CHANGED = ("tune", "seed", "steps_share", "rerun", "limit_minutes")  # by a trial, and its rate
CHANGED_IN_PYTHON = (
    "tune=lr makes its trials of the words of a run, and this one was changed in Python: give "
    "every setting to lra.compose"
)


def trials_of(run: Run) -> list[Run]:
    """One rate after the other, the lowest first; the same for every seed of the run. Not to be
    changed in place."""
    shared = {key: value for key, value in _given(run).items() if key not in CHANGED}
    tune, share = run.tune, run.steps_share * run.tune.steps_share
    return [*_trials(json.dumps(shared), share, tuple(sorted(tune.grid)), tuple(tune.seeds))]


@cache
def _trials(
    given: str, steps_share: float, rates: tuple[float, ...], seeds: tuple[int, ...]
) -> list[Run]:
    """Composing takes a tenth of a second, and a sweep asks for each of its runs."""
    shared = json.loads(given) | {"tune": {"name": "none"}, "rerun": False, "limit_minutes": None}
    shared["steps_share"] = steps_share
    return [
        check_settings(_changed(shared, {"seed": seed, _setting_of_rate(shared): rate}))
        for rate in rates
        for seed in seeds
    ]


def at_rate(run: Run, rate: float) -> Run:
    """The run itself, at the rate that was chosen."""
    given = _given(run)
    return check_settings(_changed(given, {_setting_of_rate(given): rate}))


def words_of_trial(words: Sequence[str], run: Run, trial: Run) -> list[str]:
    """The words of a trial, in which nothing is chosen, of those of the run."""
    setting = _setting_of_rate(_given(run))
    kept = [word for word in words if not _sets(word, (*CHANGED, setting))]
    if not any(word.startswith("tune=") for word in words):  # an experiment says it
        kept.append("tune=none")
    rate = trial.protocol.recipe.lr
    return [
        *kept,
        f"seed={trial.seed}",
        f"steps_share={trial.steps_share!r}",
        f"{setting}={rate!r}",
    ]


def refuse_without_trials(run: Run) -> None:
    """UserError for a run whose trials would not be its own, or not choose fairly."""
    if check_settings(_changed(_given(run), {})) != run:
        raise UserError(CHANGED_IN_PYTHON)
    if run.debug:
        raise UserError(f"debug={run.debug.name} has no score to choose a rate by: use tune=none")
    if run.protocol.evaluation.dev is Dev.test and hasattr(run.task, "dev"):
        raise UserError(
            f"tune=lr chooses on dev, which protocol {run.protocol.name} takes from the test set "
            f"of {run.task.name}: add protocol.evaluation.dev=train"
        )


def _given(run: Run) -> dict[str, Any]:
    if run.given is None:
        raise UserError(CHANGED_IN_PYTHON)
    return run.given


def _changed(given: dict[str, Any], changes: dict[str, Any]) -> DictConfig:
    cfg = OmegaConf.create(given)
    for setting, value in changes.items():
        OmegaConf.update(cfg, setting, value, force_add=True)
    return cfg


def _setting_of_rate(given: dict[str, Any]) -> str:
    """Where the rate of a run stands: an optimiser's goes over that of the recipe (own.py)."""
    return "optimizer.lr" if "lr" in (given.get("optimizer") or {}) else "protocol.recipe.lr"


def _sets(word: str, settings: tuple[str, ...]) -> bool:
    key = word.lstrip("+~").partition("=")[0]
    return key in settings or key.startswith("tune.")
