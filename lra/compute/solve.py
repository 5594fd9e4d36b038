"""Find the setting of a method's knobs that comes closest to a budget, by exhaustive search.

A knob is an option that the method's file declares under `knobs` with its range. Every setting in
range is counted, without training; only the attention slots are counted again, since the backbone
around them does not change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch

import luna
from lra import data
from lra.base.config import Mask, Pooling, UserError, nearest
from lra.compute.budget import Budget, Cost
from lra.compute.count import count_run, slot_flops
from lra.settings.compose import Run
from luna import LunaError
from luna.registry import check_options

MOST_SETTINGS = 2000  # that one search counts


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
    settings = [setting for options in _options(run) if (setting := compare(run, budget, options))]
    return min(settings, key=Setting.distance, default=None)


def _options(run: Run) -> Iterator[dict[str, Any]]:
    name, specs = run.attention["name"], run.compute.knobs
    values = [knob_values(name, knob, spec) for knob, spec in specs.items()]
    if (n_settings := math.prod(map(len, values))) > MOST_SETTINGS:
        raise UserError(
            f"the knobs of '{name}' have {n_settings:,} settings, more than the {MOST_SETTINGS:,} "
            "that one search counts: give them a larger step"
        )
    for setting in product(*values) if specs else ():
        options = dict(zip(specs, setting, strict=True))
        for knob, spec in specs.items():
            if isinstance(spec, dict):
                options |= dict.fromkeys(spec.get("tied", ()), options[knob])
        yield options


def compare(run: Run, budget: Budget, options: dict[str, Any]) -> Setting | None:
    """Count the run's size with these options; None where they exclude each other."""
    slots = _count_slots(run, run.attention | options)
    if slots is None:
        return None
    count = count_run(run)
    parameters, flops = (
        getattr(count, size) - getattr(count.parts["attention"], size) + of_slot
        for size, of_slot in zip(("parameters", "flops"), slots, strict=True)
    )
    ratios = budget.ratios(Cost(parameters, flops, None))
    return Setting(options, ratios, budget.excess(ratios))


_counted: dict[str, tuple[int, int]] = {}  # a refusal searches again where the gate has searched


def _count_slots(run: Run, attention: dict[str, Any]) -> tuple[int, int] | None:
    """Count parameters and forward FLOPs of all slots; None where the options exclude each other.
    A parameter that layers share counts once, but works in each of them."""
    key = repr((run.task.name, attention, run.model, run.protocol))
    if key in _counted:
        return _counted[key]
    task, rules, sizes = data.of(run.task), run.protocol.data, run.model
    options = {option: value for option, value in attention.items() if option != "dwc"}
    try:
        with torch.device("meta"):
            slots = [
                luna.build(
                    **options,
                    n_heads=sizes.n_heads,
                    head_dim=sizes.qkv_dim // sizes.n_heads,
                    max_len=rules.pad_to // task.stack
                    + (run.protocol.style.pooling is Pooling.cls),
                    profile=run.protocol.profile,
                )
                for _ in range(sizes.n_layers)
            ]
    except LunaError:
        return None
    for slot in slots:
        slot.tie(slots[0])
    trained = {id(p): p.numel() for s in slots for p in s.parameters() if p.requires_grad}
    flops = slot_flops(slots[0], masked=rules.mask is not Mask.none)
    _counted[key] = sum(trained.values()), (1 + task.dual) * len(slots) * flops
    return _counted[key]


# ---------------------------------------------------------------------- knobs


def check_knobs(run: Run) -> None:
    """Refuse options of a wrong type, an invalid knob, and a value outside its range."""
    name = run.attention["name"]
    check_options(name, {k: v for k, v in run.attention.items() if k not in ("name", "dwc")})
    for knob, spec in run.compute.knobs.items():
        values, value = knob_values(name, knob, spec), run.attention.get(knob)
        inside = range(spec["min"], spec["max"] + 1) if isinstance(spec, dict) else values
        if value is not None and value not in inside:
            raise UserError(
                f"attention.{knob}={value} is outside the range of {name}'s knob, "
                f"{range_of(spec)}: choose a value inside, or compute=report without compute.solve"
            )


def knob_values(name: str, knob: str, spec: Any) -> list[Any]:
    """List the values of a knob: those of a list, or from min to max in steps of `step`, or of 1;
    the options in `tied` take the same value."""
    if knob not in luna.options(name):
        raise UserError(
            f"attention '{name}' declares the knob '{knob}', which is not one of its options"
            f"{nearest(knob, luna.options(name))}"
        )
    try:
        values = spec
        if not isinstance(spec, list):
            values = range(spec["min"], spec["max"] + 1, spec.get("step", 1))
    except (AttributeError, KeyError, TypeError, ValueError):
        values = []
    if not values:
        raise UserError(
            f"knobs.{knob} of attention '{name}' must be a list of values, or whole numbers "
            f"{{min: .., max: .., step: ..}} with min <= max and step >= 1, got {spec}"
        )
    return list(values)


def range_of(spec: Any) -> str:
    if isinstance(spec, list):
        return "one of " + ", ".join(map(str, spec))
    step = f" in steps of {spec['step']}" if spec.get("step", 1) > 1 else ""
    return f"{spec['min']} to {spec['max']}{step}"
