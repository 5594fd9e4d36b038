"""What the conformance suite runs on: every registered attention, and option variants of some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
import torch

import luna
from luna import Attention

H, D, N, MAX_LEN = 2, 16, 37, 128
F = TypeVar("F", bound=Callable[..., None])

# Beyond the defaults: options that change what a method computes enough to be held to its contract.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "hedgehog": [{"normalisation": "exp"}, {"normalisation": "softmax_joint"}],
    "linformer": [{"share": "none"}],
    "luna": [
        {"share": "head", "tie_qk": False, "shared_channels": True},
        {"nonneg": False, "activation": "gelu"},
        {"envelope": "vector", "envelope_hidden": 8},
        {"kernel": "bank_coef", "bank": "fixed", "M": 2},
        {"kernel": "bank_coef_concat", "bank": "fixed"},
        {"kernel": "rff"},
    ],
    "nystrom": [{"landmarks": 8, "conv_kernel": 5}],
    "performer": [{"eps": 0, "orthogonal": False}],
    "polaformer": [{"gate": "q", "local": "conv1d"}],
    "rff": [{"kernel": "softmax"}],
    "skyformer": [{"landmarks": 8}],
    "synthesizer": [
        {"form": form} for form in ("random", "factorized_random", "dense", "factorized_dense")
    ],
    "t2r": [{"eps": "t2r_original", "scale_q": True}],
}


@dataclass(frozen=True)
class Case:
    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return ",".join([self.name, *(f"{k}={v}" for k, v in self.options.items())])

    @property
    def cls(self) -> type[Attention]:
        return luna.get(self.name)

    def build(self, *, init: int = 0, shake: bool = True, **slot: Any) -> Attention:
        """In evaluation mode and float64, parameters moved off their initial zeros and ones."""
        torch.manual_seed(init)
        sizes = {"n_heads": H, "head_dim": D, "max_len": MAX_LEN} | slot
        attention = luna.build(self.name, **sizes, **self.options).double().eval()
        if shake:
            with torch.no_grad():
                for p in attention.parameters():
                    p.add_(0.1 * torch.randn_like(p))
        return attention


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
        case = request.getfixturevalue("case")
        if name in case.cls.exempt:
            reason = f"exempt: {case.cls.exempt[name]}"
            request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))
