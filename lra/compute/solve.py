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
    best = closest(run, budget)
    name = run.attention["name"]
    if best is None:
        if run.compute.exempt is not None:
            return run, {}
        raise UserError(
            f"attention '{name}' declares no knob in its file for compute.solve to set: "
            "add knobs: {option: {min: .., max: ..}}, or say why there is none (exempt: ..)"
        )
    before = run.attention
    solved = {k: (before.get(k), v) for k, v in best.options.items() if before.get(k) != v}
    return replace(run, attention=before | best.options), solved


def closest(run: Run, budget: Budget) -> Setting | None:
    settings = [setting for options in _options(run) if (setting := compare(run, budget, options))]
    return min(settings, key=Setting.distance, default=None)


# ---------------------------------------------------------------------- the search


def _options(run: Run) -> Iterator[dict[str, Any]]:
    name, specs = run.attention["name"], run.compute.knobs
    knobs = {knob: knob_values(name, knob, spec) for knob, spec in specs.items()}
    n_settings = math.prod(map(len, knobs.values()))
    if n_settings > MOST_SETTINGS:
        raise UserError(
            f"the knobs of '{name}' have {n_settings:,} settings, more than the {MOST_SETTINGS:,} "
            "that one search counts: give them a larger step"
        )
    for values in product(*knobs.values()) if knobs else ():
        options = dict(zip(knobs, values, strict=True))
        for knob, spec in specs.items():
            options |= dict.fromkeys(_tied(spec), options[knob])
        yield options


def compare(run: Run, budget: Budget, options: dict[str, Any]) -> Setting | None:
    """Count the run's size with these options; None where they exclude each other."""
    slots = _slots(run, run.attention | options)
    if slots is None:
        return None
    # The network without its slots: attention=uniform has no parameters and no products.
    empty = {"name": "uniform", "dwc": run.attention.get("dwc", "none")}
    around = count_run(run, empty, backward=False)
    parameters, flops = slots
    cost = Cost(around.parameters + parameters, around.flops + flops, None)
    ratios = budget.ratios(cost)
    return Setting(options, ratios, budget.excess(ratios))


def build_slots(run: Run, attention: dict[str, Any]) -> list[luna.Attention]:
    protocol, sizes = run.protocol, run.model
    options = {key: value for key, value in attention.items() if key != "dwc"}
    tokens = protocol.data.pad_to // data.of(run.task).stack
    with torch.device("meta"):
        slots = [
            luna.build(
                **options,
                n_heads=sizes.n_heads,
                head_dim=sizes.qkv_dim // sizes.n_heads,
                max_len=tokens + (protocol.style.pooling is Pooling.cls),
                profile=protocol.profile,
            )
            for _ in range(sizes.n_layers)
        ]
    for slot in slots:
        slot.tie(slots[0])
    return slots


_counted: dict[str, tuple[int, int]] = {}  # a refusal searches again where the gate has searched


def _slots(run: Run, attention: dict[str, Any]) -> tuple[int, int] | None:
    """Count parameters and forward FLOPs of all slots; None where the options exclude each other.
    A parameter that layers share counts once, but works in each of them."""
    key = repr((run.task.name, attention, run.model, run.protocol))
    if key not in _counted:
        try:
            slots = build_slots(run, attention)
        except LunaError:
            return None
        trained = {id(p): p.numel() for s in slots for p in s.parameters() if p.requires_grad}
        texts = 2 if data.get(run.task.name).dual else 1
        masked = run.protocol.data.mask is not Mask.none
        flops = texts * len(slots) * slot_flops(slots[0], masked=masked)
        _counted[key] = sum(trained.values()), flops
    return _counted[key]


# ---------------------------------------------------------------------- knobs


def check_knobs(run: Run) -> None:
    """Refuse a knob that is not an option, an invalid range, and a value outside its range."""
    name = run.attention["name"]
    check_options(name, {k: v for k, v in run.attention.items() if k not in ("name", "dwc")})
    for knob, spec in run.compute.knobs.items():
        if knob not in luna.options(name):
            raise UserError(
                f"attention '{name}' declares the knob '{knob}', which is not one of its options"
                f"{nearest(knob, luna.options(name))}"
            )
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
    if isinstance(spec, list) and spec:
        return spec
    try:
        values = list(range(spec["min"], spec["max"] + 1, spec.get("step", 1)))
    except (AttributeError, KeyError, TypeError, ValueError):
        values = []
    if not values:
        raise UserError(
            f"knobs.{knob} of attention '{name}' must be a list of values, or whole numbers "
            f"{{min: .., max: .., step: ..}} with min <= max and step >= 1, got {spec}"
        )
    return values


def _tied(spec: Any) -> list[str]:
    return spec.get("tied", []) if isinstance(spec, dict) else []


def range_of(spec: Any) -> str:
    if isinstance(spec, list):
        return "one of " + ", ".join(map(str, spec))
    step = f" in steps of {spec['step']}" if spec.get("step", 1) > 1 else ""
    return f"{spec['min']} to {spec['max']}{step}"
