"""What axes and settings are called in figures of tables."""

from __future__ import annotations

import pandas as pd

# Settings of one letter keep it, because tables and commands have it.
AXES = {
    "pairs": "pairs to recall",
    "M": "M, projections of a token",
    "L": "L, scalar functions",
    "hidden": "width of a scalar network",
    "nonneg": "outputs",
    "normalise": "sums over keys are",
}
TITLES = {"dwc": "local branch", "lr": "learning rate", "pretrain": "self-pretraining"}


def axis_of(cells: pd.DataFrame, split: str = "test") -> str:
    """`test accuracy (%)`"""
    first = cells.iloc[0]
    unit = f" ({first['unit']})" if first["unit"] else ""
    return f"{split} {first['title']}{unit}"
