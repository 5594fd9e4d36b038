"""Find the setting of a method's knobs that comes closest to a budget, by exhaustive search.

A knob is an option that the method's file declares under `knobs` with its range. Every setting in
range is counted, without training; only the attention slots are counted again, since the backbone
around them does not change.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import luna
from lra.base.config import Mask
from lra.base.errors import UserError, nearest
from lra.compute.budget import Budget, Cost
from lra.compute.count import build, count_run, parts_of, slot_flops
from lra.settings.run import Run
from luna import LunaError


@dataclass(frozen=True)
class Setting:
    options: dict[str, Any]
    ratios: dict[str, float]
    excess: float

    def distance(self) -> tuple[float, ...]:
        """Prefer what lies within the tolerances, then the closest in FLOPs, then parameters."""
        away = [abs(math.log(self.ratios.get(m, 1.0))) for m in ("flops", "parameters")]
        return self.excess, *away


def solve(run: Run, budget: Budget) -> tuple[Run, dict[str, tuple[Any, Any]]]:
    """Set the knobs of `run`, and return also what changed: option -> (before, after)."""
    best, before = closest(run, budget), run.attention
    if best is None:
        if run.compute.exempt is not None:
            return run, {}
        raise UserError(
            f"attention '{before['name']}' declares no knob in its file for compute.solve to set: "
            "add knobs: {option: {min: .., max: ..}}, or say why there is none (exempt: ..)"
        )
    solved = {k: (before.get(k), v) for k, v in best.options.items() if before.get(k) != v}
    return replace(run, attention=before | best.options), solved


def closest(run: Run, budget: Budget) -> Setting | None:
    name, specs = run.attention["name"], run.compute.knobs
    values = [knob_values(name, knob, spec) for knob, spec in specs.items()]
    settings: list[Setting] = []
    refused: LunaError | None = None
    for setting in product(*values) if specs else ():
        options = dict(zip(specs, setting, strict=True))
        for knob, spec in specs.items():
            if isinstance(spec, dict):
                options |= dict.fromkeys(spec.get("tied", ()), options[knob])
        try:
            settings.append(compare(run, budget, options))
        except LunaError as error:  # these exclude each other
            refused = error
    if refused is not None and not settings:  # whatever the knobs, so it is another option
        raise refused
    return min(settings, key=Setting.distance, default=None)


def compare(run: Run, budget: Budget, options: dict[str, Any]) -> Setting:
    """Count the run's size with these options. A parameter that layers share counts once, but works
    in each of them."""
    network = build(replace(run, attention=run.attention | options), "meta")
    slots: list[Any] = [module for module, part in parts_of(network) if part == "attention"]
    trained = {id(p): p.numel() for s in slots for p in s.parameters() if p.requires_grad}
    different = slots if slots[0].traits().layers_differ else slots[:1]
    masked = run.protocol.data.mask is not Mask.none
    flops = sum(slot_flops(slot, masked=masked) for slot in different)
    flops *= (1 + network.dual) * len(slots) // len(different)
    count = count_run(run)
    before = count.parts["attention"]
    parameters = count.parameters - before.parameters + sum(trained.values())
    ratios = budget.ratios(Cost(parameters, count.flops - before.flops + flops, None))
    return Setting(options, ratios, budget.excess(ratios))


# ---------------------------------------------------------------------- knobs


def knob_values(name: str, knob: str, spec: Any) -> list[Any]:
    """List the values of a knob: those of a list, or from min to max in steps of `step`, or of 1;
    the options in `tied` take the same value."""
    if knob not in luna.options(name):
        raise UserError(
            f"attention '{name}' declares the knob '{knob}', which is not one of its options"
            f"{nearest(knob, luna.options(name))}"
        )
    values = spec
    if not isinstance(spec, list):
        with suppress(AttributeError, KeyError, TypeError, ValueError):
            values = [*range(spec["min"], spec["max"] + 1, spec.get("step", 1))]
    if not values or not isinstance(values, list):
        raise UserError(
            f"knobs.{knob} of attention '{name}' must be a list of values, or whole numbers "
            f"{{min: .., max: .., step: ..}} with min <= max and step >= 1, got {spec}"
        )
    return values


def range_of(spec: Any) -> str:
    if isinstance(spec, list):
        return "one of " + ", ".join(map(str, spec))
    step = f" in steps of {spec['step']}" if spec.get("step", 1) > 1 else ""
    return f"{spec['min']} to {spec['max']}{step}"
