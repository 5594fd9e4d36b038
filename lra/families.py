"""The families of methods, by which `lra list`, docs/attentions.md and its picture group them.

A method says nothing of this itself: where it is listed is no part of a run's code, and to move it
must not make old and new runs differ. A method that is not named here stands under OTHER.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    name: str
    says: str  # how its tokens meet, in one sentence
    methods: tuple[str, ...] = ()


FAMILIES = (
    Family(
        "softmax and sparse",
        "Each pair of tokens has a weight of its own, or some pairs do: those of a window, of a "
        "hash, of a random graph.",
        (
            "bigbird",
            "informer",
            "kernelized",
            "local",
            "longformer",
            "reformer",
            "softmax",
            "synthesizer",
        ),
    ),
    Family(
        "low rank",
        "Tokens meet through a few landmarks, agents or mixed rows.",
        (
            "agent",
            "linformer",
            "lotformer",
            "luna2021",
            "nystrom",
            "skyformer",
        ),
    ),
    Family(
        "fixed kernels",
        "Weights are φ(q)·φ(k), and a formula gives φ; random features are drawn and stay.",
        (
            "based",
            "cosformer",
            "flowformer",
            "linear",
            "mala",
            "performer",
            "performer_relu",
            "rff",
            "transnormer",
        ),
    ),
    Family(
        "learned kernels",
        "Weights are φ(q)·φ(k), and φ is learned.",
        (
            "fastfood",
            "hedgehog",
            "klt",
            "luna",
            "polaformer",
            "rebased",
            "t2r",
        ),
    ),
    Family(
        "gates",
        "A state is a matrix that each token adds to, and a gate makes it fade.",
        (
            "gla",
            "lion",
        ),
    ),
    Family(
        "delta rule",
        "A state is a matrix in which each token replaces what stood under its key.",
        (
            "deltanet",
            "gated_deltanet",
        ),
    ),
    Family(
        "state space",
        "A linear recurrence keeps a few numbers of each channel, and weights depend on distance; "
        "in hydra and mamba2 on the tokens too, in mega an attention follows.",
        (
            "ema",
            "hydra",
            "lru",
            "mamba2",
            "mega",
            "s4d",
        ),
    ),
    Family(
        "convolution",
        "A weight for every distance, free of any recurrence; in conv, a control, for a few "
        "distances.",
        (
            "conv",
            "longconv",
        ),
    ),
    Family(
        "control",
        "What a method has to be better than: the mean of all tokens, whatever they are.",
        ("uniform",),
    ),
)
OTHER = Family("other", "Methods of plug-ins, and those that lra/families.py does not name.")


def family_of(method: str) -> Family:
    return next((family for family in FAMILIES if method in family.methods), OTHER)
