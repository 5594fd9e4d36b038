"""What the conformance suite runs on: every registered attention, and option variants of some."""

from __future__ import annotations

from typing import Any

import luna
from luna.testing import Case

# Beyond the defaults: options that change what a method computes enough to be held to its contract,
# with several blocks, chunks, landmarks to a sequence.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "agent": [{"agents": 8}],
    "fastfood": [
        {"features": "prf", "blocks": 2, "share": "head"},
        {"smoothing": 0.0, "blocks": 3},
        {"projections": "frozen"},
    ],
    "deltanet": [
        {"norm": False},
        {"negative": True},
        {"steps": 2, "negative": True},
        {"steps": 3, "gates": "x"},
        {"features": "rff", "norm": False},
        {"features": "luna", "nonneg": False, "steps": 2},
    ],
    "gated_deltanet": [{"gates": "x", "norm": False}],
    "gla": [
        {"gates": "x", "norm": False},
        {"decay": "scalar"},
        {"decay": "fixed", "norm": False},
        {"keys": "complement", "norm": False},
    ],
    "hydra": [{"gates": "x"}, {"shift": False}],
    "hedgehog": [{"normalisation": "exp"}, {"normalisation": "softmax_joint"}],
    "informer": [{"budget": 4}],
    "kda": [{"norm": False}, {"gates": "x"}, {"erase": True, "negative": True}],
    "klt": [{"kind": "gmm_rks"}, {"kind": "gmm_rks", "smoothing": 1.5, "m": 8}],
    "linformer": [{"share": "none"}],
    "lion": [{"gates": "x"}, {"decay": "fixed"}, {"decay": "none"}],
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
    "longconv": [{"init": "decay", "output": "glu"}],
    "lru": [{"state": 3, "output": "glu"}],
    "mamba2": [{"conv": 1, "expand": 1}],
    "mega": [{"weights": "laplace", "chunk": 8}],
    "mesa": [
        {"norm": False},
        {"features": "rff"},
        {"features": "luna", "norm": False},
        {"features": "luna", "nonneg": False, "frozen": True},
    ],
    "mlstm": [{"norm": False}, {"gates": "x"}],
    "nystrom": [{"landmarks": 8, "conv_kernel": 5}],
    "linear": [{"normalise": "abs"}, {"normalise": "rms"}],
    "performer": [{"eps": 0, "orthogonal": False}, {"eps": 0.1, "m": 24}, {"normalise": "rms"}],
    "reformer": [{"chunk": 8}],
    "s4d": [
        {"init": "real", "output": "glu"},
        {"block": "s4", "output": "glu", "shared": True, "init": "legs"},
    ],
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


def strict_cases() -> list[Case]:
    # The methods of a stack are cases themselves; `lra check` checks them.
    cases = [Case(name) for name in luna.names() if name != "stack"]
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
