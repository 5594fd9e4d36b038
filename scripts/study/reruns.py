"""Scores on full-length ListOps of one and the same method: each published row, and our seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import listops
import numpy as np

from lra.figures.schemes import BAND
from lra.figures.style import INK, OTHERS, PHONE, name_above, save_figure
from lra.looks import look_of

FINDING = (
    "Published scores on ListOps of one and the same method lie up to {} points apart; no seed of "
    "ours is above the rule of three tokens"
)


class Method(NamedTuple):
    name: str
    theirs: list[float]  # each published row
    ours: list[float]  # each seed


def methods_of(results: Path) -> list[Method]:
    """Methods that we ran and others published, the largest spread of theirs on top. Of LUNA its
    published setting alone is such a method."""
    published: dict[str, list[float]] = {}
    for rows in listops.published_rows().values():
        for name, score in rows:
            published.setdefault(name, []).append(score)
    runs = listops.runs_of(results)
    runs = runs[~runs["attention.nonneg"].eq(False)]
    found = [
        Method(name, published[name], [*map(float, part["score"])])
        for name, part in runs.groupby("attention")
        if name in published
    ]
    return sorted(found, key=lambda method: np.ptp(method.theirs))


def draw(results: Path, out: Path) -> list[Path]:
    rules, methods = listops.rules_of(results), methods_of(results)
    low, high = rules["first operator"], rules["first tokens"]

    def fill(figure: Any) -> None:
        axes = figure.subplots()
        axes.axvspan(low, high, color=BAND, lw=0, zorder=0)
        for y, method in enumerate(methods):
            look = look_of(method.name)
            axes.plot(method.theirs, [y + 0.08] * len(method.theirs), "o", ms=6, mfc="none", c=INK)
            axes.plot([min(method.theirs), max(method.theirs)], [y + 0.08] * 2, color=OTHERS, lw=1)
            axes.plot(method.ours, [y - 0.16] * len(method.ours), "|", ms=9, mew=2, c=look.colour)
        name_above([axes], {y: look_of(m.name).name for y, m in enumerate(methods)})
        axes.set(xlabel="test accuracy, %", ylim=(-0.5, len(methods) - 0.2))

    title = (
        f"{finding(methods)}\n○ a published row   | a seed of ours\n"
        "Published rows differ in size, steps and data; ours have the size and the steps of "
        "Nyströmformer's. Band: what the first 1 to 3 tokens give."
    )
    return save_figure(out / "reruns", fill, title, 3 + 0.42 * len(methods), PHONE)


def finding(methods: list[Method]) -> str:
    return FINDING.format(round(max(np.ptp(method.theirs) for method in methods)))
