"""What the conformance suite runs on: every registered attention, and option variants of some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

import luna
from luna import Attention

from .kit import shaken

D, N = 16, 37
F = TypeVar("F", bound=Callable[..., None])

# Beyond the defaults: options that change what a method computes enough to be held to its contract,
# with several blocks, chunks, landmarks to a sequence.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "agent": [{"agents": 8}],
    "hedgehog": [{"normalisation": "exp"}, {"normalisation": "softmax_joint"}],
    "informer": [{"budget": 4}],
    "linformer": [{"share": "none"}],
    "local": [{"block": 8, "look_back": 1, "look_ahead": 2}],
    "longformer": [{"left": 5, "right": 3}, {"left": 2, "right": 9, "global_tokens": [0, 30]}],
    "luna": [
        {"share": "head", "tie_qk": False, "shared_channels": True},
        {"nonneg": False, "activation": "gelu"},
        {"envelope": "vector", "envelope_hidden": 8},
        {"kernel": "bank_coef", "M": 2, "L": 4, "nonneg": False},
        {"kernel": "bank_coef_concat", "nonneg": False},
        {"kernel": "rff"},
        {"kernel": "rff", "phases": True, "M": 5, "L": 5},
        {"envelope": "norm", "envelope_squash": "exp", "projections": "gaussian", "psi": "frozen"},
        {"nonneg": False, "normalise": "abs"},
        {"nonneg": False, "normalise": "rms"},
    ],
    "nystrom": [{"landmarks": 8, "conv_kernel": 5}],
    "linear": [{"normalise": "abs"}, {"normalise": "rms"}],
    "performer": [{"eps": 0, "orthogonal": False}, {"eps": 0.1, "m": 24}, {"normalise": "rms"}],
    "reformer": [{"chunk": 8}],
    "skyformer": [{"landmarks": 8}],
    "rff": [{"normalise": "abs"}, {"normalise": "rms"}],
    "synthesizer": [
        {"form": form} for form in ("random", "factorized_random", "dense", "factorized_dense")
    ],
    "transnormer": [{"n_layers": 2, "block": 4}],  # the first layer of two: DiagAttention
}

# Variants that lack a part of the contract by their definition (freedom from the padded length),
# and the public codes' profiles: the tests of `any_case` alone are theirs.
OTHERS: dict[str, list[dict[str, Any]]] = {
    "bigbird": [{"block": 5}],
    "kernelized": [{"alibi": True}],
    "local": [{"block": 7, "look_ahead": 1, "pattern": "strided"}],
    "lotformer": [{"eps": 1.0, "half_steps": 5}],
    "nystrom": [{"landmarks": 8, "inverse_steps": None}],
    "reformer": [{"chunk": 7, "rounds": 3}],
    "skyformer": [{"landmarks": 8, "inverse_steps": None}],
    "softmax": [{"alibi": True}],
}
PUBLIC: dict[str, list[dict[str, Any]]] = {
    "bigbird": [{"block": 4}, {"block": 5}],
    "informer": [{"budget": 4}],
    "linformer": [{"k": 8}],
    "local": [{"block": 8}],
    "nystrom": [{"landmarks": 8}],
    "performer": [{"m": 16, "redraw": 0}],
    "reformer": [{"chunk": 7}],
    "skyformer": [{"landmarks": 8}],
}


@dataclass(frozen=True)
class Case:
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    profile: str = "strict"

    def __str__(self) -> str:
        shown = self.options if self.profile == "strict" else self.options | {"": self.profile}
        return ",".join([self.name, *(f"{k}={v}" if k else v for k, v in shown.items())])

    @property
    def cls(self) -> type[Attention]:
        return luna.get(self.name)

    def build(self, *, init: int = 0, **slot: Any) -> Attention:
        """Build it in evaluation mode and float64, parameters moved off their initial values."""
        sizes = {"head_dim": D, "profile": self.profile} | slot
        return shaken(self.name, init=init, **sizes, **self.options)


def strict_cases() -> list[Case]:
    cases = [Case(name) for name in luna.names()]
    return cases + [Case(name, options) for name, more in VARIANTS.items() for options in more]


def all_cases() -> list[Case]:
    """With the other variants, and every profile."""
    cases = [Case(name, options) for name, more in OTHERS.items() for options in more]
    cases += [
        Case(name, options, profile)
        for name in luna.names()
        for profile in luna.get(name).profiles[1:]
        for options in PUBLIC.get(name, [{}])
    ]
    return strict_cases() + cases


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", strict_cases(), ids=str)
    if "any_case" in metafunc.fixturenames:
        metafunc.parametrize("any_case", all_cases(), ids=str)


def conformance(name: str) -> Callable[[F], F]:
    """Names a test of the conformance suite, so that a method can excuse itself from it."""

    def put(test: F) -> F:
        test.conformance = name  # type: ignore[attr-defined]
        return test

    return put


@pytest.fixture(autouse=True)
def _exempt(request: pytest.FixtureRequest) -> None:
    """A method that excuses itself must fail the test: an excuse that is not needed is an error."""
    name = getattr(request.function, "conformance", None)
    if name is not None:
        which = "case" if "case" in request.fixturenames else "any_case"
        case = request.getfixturevalue(which)
        exempt = case.build().traits().exempt
        if name in exempt:
            reason = f"exempt: {exempt[name]}"
            request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))
