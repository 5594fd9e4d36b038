"""The first picture of the project: how many levels of an expression must be read for a score on
ListOps, and where published rows and our runs lie. Few words, large letters.

    python scripts/study/ladder.py

Its letters have 12 pixels where a phone shows it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import listops
import numpy as np

from lra.figures.schemes import BAND
from lra.figures.style import INK, OTHERS, PHONE, save_figure
from lra.looks import BLACK, BLUE, LUNA
from lra.report.rules import read_rules

FINDING = (
    "On ListOps all published Transformers but one have about what the first tokens give, or less, "
    "and most published state spaces what one level and the operators below it give"
)
STEM = "ladder"
HEIGHT, DPI = 3.0, 300  # inches
# What a reader sees, in the words of the picture.
LEVELS = {
    "depth 1": "1",
    "depth 1 and operators": "1½",
    "depth 2": "2",
    "depth 3": "3",
    "depth 4": "4",
}
LANES = ("published\nTransformers", "our runs,\nsame budget", "published\nstate spaces")
FAR = 5  # points above the first tokens, from which a published Transformer is named
APART = 0.16  # of a lane, within which dots that would hide each other are spread


def draw(results: Path, out: Path) -> list[Path]:
    """Write ladder-light.png, ladder-dark.png and ladder.pdf."""
    rules, rungs, lanes = listops.rules_of(results), rungs_of(results), lanes_of(results)

    def fill(figure: Any) -> None:
        draw_ladder(figure.subplots(), rules, rungs, lanes)

    return save_figure(out / STEM, fill, "", HEIGHT, PHONE, dpi=DPI)


def rungs_of(results: Path) -> dict[str, float]:
    """The accuracy of the readers at the benchmark's length."""
    (line,) = (
        line
        for line in read_rules(results)
        if listops.LENGTHS.items() <= line["options"].items() and "balanced" not in line["options"]
    )
    return {name: line["readers"][name]["test"] for name in LEVELS}


def lanes_of(results: Path) -> list[list[tuple[str, float]]]:
    """Methods and scores of each lane; each published row, and each seed of ours."""
    theirs = listops.published_rows()
    states = theirs.pop(listops.STATES)
    ours = listops.our_rows(results)
    return [[*chain(*theirs.values())], [*chain(*ours.values())], states]


def draw_ladder(
    axes: Any,
    rules: Mapping[str, float],
    rungs: Mapping[str, float],
    lanes: list[list[tuple[str, float]]],
) -> None:
    low, high = rules["first operator"], rules["first tokens"]
    axes.set(xlim=(13, 93), ylim=(len(lanes) - 0.45, -0.55))
    axes.axvspan(low, high, color=BAND, lw=0, zorder=0)
    above = {"ha": "center", "va": "bottom", "color": INK, "annotation_clip": False}
    top = axes.get_xaxis_transform()
    axes.annotate("first 1–3\ntokens", ((low + high) / 2, 1.02), xycoords=top, **above)
    for name, level in LEVELS.items():
        axes.axvline(rungs[name], color=OTHERS, lw=1.4, zorder=0)
        axes.annotate(level, (rungs[name], 1.02), xycoords=top, fontweight="bold", **above)
    middle = (rungs["depth 1"] + rungs["depth 4"]) / 2
    axes.annotate("levels that are read", (middle, 1.16), xycoords=top, **above)
    for y, lane in enumerate(lanes):
        scores = np.array([score for _, score in lane])
        places = y + spread(scores)
        for (method, score), at in zip(lane, places, strict=True):
            is_luna = method == "luna"
            colour = LUNA if is_luna else BLUE if y == 2 else BLACK
            style = {"marker": "D", "ms": 6} if is_luna else {"marker": "o", "ms": 5}
            axes.plot(score, at, color=colour, mec="white", mew=0.5, zorder=3 + is_luna, **style)
    for method, score in lanes[0]:
        if score > high + FAR:
            place = {"va": "center", "color": INK, "backgroundcolor": "white"}
            axes.annotate(method, (score + 1.6, 0), zorder=2, **place)
    axes.annotate("LUNA", (high + 2.5, 1), va="center", color=LUNA, fontweight="bold")
    axes.set_yticks(range(len(lanes)), LANES, color=INK)
    axes.set_xticks([20, 40, 60, 80], ["20 %", "40", "60", "80"], color=INK)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def spread(scores: np.ndarray, near: float = 1.3) -> np.ndarray:
    """Move dots that would hide each other up and down, the same way each time."""
    places = np.zeros(len(scores))
    steps = [0, 1, -1, 2, -2]
    taken: list[tuple[float, int]] = []
    for i in np.argsort(scores, kind="stable"):
        hidden = [sum(abs(s - scores[i]) < near and at == k for s, at in taken) for k in steps]
        chosen = steps[int(np.argmin(hidden))]
        taken.append((float(scores[i]), chosen))
        places[i] = chosen * APART
    return places


if __name__ == "__main__":
    folder = Path(__file__).resolve().parents[2] / "results"
    for path in draw(folder, folder / "figures"):
        print(path)
