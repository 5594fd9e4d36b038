"""DeltaNet in both directions: `gated_deltanet` without its decay, which has the formulas.

Yang et al. (2024), https://arxiv.org/abs/2406.06484, in chunks; the rule is of Schlag et al.
(2021), https://arxiv.org/abs/2102.11174.
"""

from __future__ import annotations

from luna.attention.gated_deltanet import DeltaRule
from luna.base import Paper, register


@register("deltanet")
class DeltaNet(DeltaRule):
    title = "DeltaNet"
    family = "delta rule"
    marker = "v"
    paper = Paper(
        "Parallelizing Linear Transformers with the Delta Rule over Sequence Length",
        2024,
        "https://arxiv.org/abs/2406.06484",
    )
