"""The golden run of a method: 20 steps of training with the method at its usual options."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import luna

from .made import Numbers, numbers_of, of_method, one_step, small, trained

# Blocks, windows, samples and landmarks of fewer tokens than an example has: with the usual ones
# a method that sees a part of the tokens would see all.
SMALLER: dict[str, dict[str, Any]] = {
    "agent": {"agents": 16},
    "informer": {"budget": 8},
    "klt": {"m": 16},
    "linformer": {"k": 16},
    "local": {"block": 16},
    "longformer": {"left": 8, "right": 4, "global_tokens": [0]},
    "lotformer": {"R": 8, "half_steps": 11},
    "nystrom": {"landmarks": 16},
    "performer": {"m": 16, "redraw": 8},
    "reformer": {"chunk": 8},
    "skyformer": {"landmarks": 16},
    "t2r": {"r": 12},
}
# Options beside the usual ones that change what is computed: a run each.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "luna": {"signed": {"nonneg": False}, "normalised": {"normalise": "rms"}},
    "linear": {"normalised": {"normalise": "rms"}},
    "local": {"looking back": {"look_back": 1}},
}


def names() -> list[str]:
    """The project's own methods; one that somebody has installed has no golden run."""
    return [name for name in luna.names() if luna.get(name).__module__.startswith("luna.")]


def measure(name: str) -> Numbers:
    fixed = SMALLER.get(name, {})
    numbers = numbers_of(trained(of_method(name, small(), **fixed)))
    for variant, options in VARIANTS.get(name, {}).items():
        numbers[variant] = numbers_of(trained(of_method(name, small(), **fixed, **options)))
    return numbers | _forms(name, fixed)


def _forms(name: str, fixed: dict[str, Any]) -> Numbers:
    """One step of each other profile, and of the causal form: what they share with the strict
    profile has been seen in 20."""
    cls, usual = luna.get(name), of_method(name, small(), **fixed)
    numbers = {}
    for profile in cls.profiles:
        if profile != "strict":
            protocol = replace(usual.protocol, profile=profile)
            numbers[f"profile {profile}"] = one_step(replace(usual, protocol=protocol))
    if cls.declared.causal_form:
        numbers["causal"] = one_step(of_method(name, small(), **fixed, causal=True))
    return numbers
