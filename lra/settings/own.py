"""Optimiser, schedule and callbacks by `_target_`, and what of them decides a result.

An optimiser and a schedule always do. A callback does unless its file says `moves_results: false`:
then it is no part of a run's identity, and its code is not part of the run's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lra.base.config import Schedule
from lra.base.errors import UserError
from lra.settings.run import MARKS, Run

OF_RECIPE = ("lr", "weight_decay")  # have one place, protocol.recipe, also where an optimiser's
# file sets them: so records and tables need to know one name of each


def take_own(run: Run) -> None:
    """Check optimiser, schedule and callbacks as far as that imports nothing, and give the recipe
    those of the optimiser's options that it has a place for."""
    for setting, options in chosen(run):
        if not isinstance(options, dict) or "_target_" not in options:
            raise UserError(f"{setting} has no _target_, the place of its class: package.Name")
        options.pop(
            "_partial_", None
        )  # as other projects write it; what gets more arguments is known here
        for mark in MARKS:
            if not isinstance(options.get(mark, True), bool):
                raise UserError(f"{setting}.{mark}={options[mark]} must be true or false")
    recipe = run.protocol.recipe
    for name in OF_RECIPE:
        if name in run.optimizer:
            value = run.optimizer.pop(name)
            if type(value) not in (int, float):
                raise UserError(f"optimizer.{name}={value} must be a number")
            setattr(recipe, name, float(value))
    if run.schedule:
        # The rule of the protocol is not used: two runs that differ in it alone are the same.
        recipe.schedule = Schedule.constant


def chosen(run: Run) -> Iterator[tuple[str, Any]]:
    """Yield what a run names by `_target_`, by its setting. Callbacks run in the order of their
    names: the order in which they were given is in no identity."""
    for group in ("optimizer", "schedule"):
        if options := getattr(run, group):
            yield group, options
    for name in sorted(run.callbacks):
        if run.callbacks[name]:
            yield f"callbacks.{name}", run.callbacks[name]


def decides(setting: str, options: dict[str, Any]) -> bool:
    return not setting.startswith("callbacks.") or options.get("moves_results", True)


def arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Give what the class gets."""
    return {k: v for k, v in options.items() if k not in ("_target_", *MARKS)}


def spelt(chosen: Any) -> str:
    """Write what a run names by `_target_` as one word: `SGD(momentum=0.9)`, none where nothing."""
    if not chosen:
        return "none"
    if "_target_" not in chosen:  # several, by their names
        return " ".join(spelt(options) for _, options in sorted(chosen.items()))
    words = ",".join(f"{k}={v}" for k, v in sorted(chosen.items()) if k != "_target_")
    return chosen["_target_"].rpartition(".")[2] + (f"({words})" if words else "")
