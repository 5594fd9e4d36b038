"""The first picture of the project: how many levels of an expression must be read for a score on
ListOps, and where published rows and our runs lie. Few words, large letters, light and dark.

    python scripts/study/ladder.py

Its letters have 12 pixels where a phone shows it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import listops
import numpy as np

from lra.figures.style import PHONE, letters
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


class Colours(NamedTuple):
    paper: str
    ink: str
    dot: str
    line: str
    luna: str
    states: str
    band: str


LOOKS = {
    "light": Colours("#ffffff", "#1f2328", "#3b4046", "#b9bec4", "#e0457b", "#2b8cc4", "#f0cf8a"),
    "dark": Colours("#0d1117", "#e6edf3", "#c3cad2", "#4b535d", "#ff6fa0", "#58b2ea", "#7a5c1e"),
}


def draw(results: Path, out: Path) -> list[Path]:
    """Write ladder-light.png and ladder-dark.png."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rules, rungs, lanes = listops.rules_of(results), rungs_of(results), lanes_of(results)
    paths = []
    for name, colours in LOOKS.items():
        with mpl.rc_context({"font.family": "DejaVu Sans", "font.size": PHONE.points}):
            figure = Figure(figsize=(PHONE.inches, HEIGHT), facecolor=colours.paper)
            axes = figure.add_axes((0.275, 0.11, 0.71, 0.68))
            draw_ladder(axes, rules, rungs, lanes, colours)
            paths.append(out / f"{STEM}-{name}.png")
            said = {"letters": f"{letters(figure):.1f}"}
            figure.savefig(paths[-1], dpi=DPI, facecolor=colours.paper, metadata=said)
    return paths


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
    colours: Colours,
) -> None:
    low, high = rules["first operator"], rules["first tokens"]
    axes.set(xlim=(13, 93), ylim=(len(lanes) - 0.45, -0.55), facecolor=colours.paper)
    axes.axvspan(low, high, color=colours.band, lw=0, zorder=0)
    above = {"ha": "center", "va": "bottom", "color": colours.ink, "annotation_clip": False}
    top = axes.get_xaxis_transform()
    axes.annotate("first 1–3\ntokens", ((low + high) / 2, 1.02), xycoords=top, **above)
    for name, level in LEVELS.items():
        axes.axvline(rungs[name], color=colours.line, lw=1.4, zorder=0)
        axes.annotate(level, (rungs[name], 1.02), xycoords=top, fontweight="bold", **above)
    middle = (rungs["depth 1"] + rungs["depth 4"]) / 2
    axes.annotate("levels that are read", (middle, 1.16), xycoords=top, **above)
    for y, lane in enumerate(lanes):
        scores = np.array([score for _, score in lane])
        places = y + spread(scores)
        for (method, score), at in zip(lane, places, strict=True):
            is_luna = method == "luna"
            colour = colours.luna if is_luna else colours.states if y == 2 else colours.dot
            style = {"marker": "D", "ms": 6} if is_luna else {"marker": "o", "ms": 5}
            axes.plot(
                score, at, color=colour, mec=colours.paper, mew=0.5, zorder=3 + is_luna, **style
            )
    for method, score in lanes[0]:
        if score > high + FAR:
            place = {"va": "center", "color": colours.ink, "backgroundcolor": colours.paper}
            axes.annotate(method, (score + 1.6, 0), zorder=2, **place)
    axes.annotate("LUNA", (high + 2.5, 1), va="center", color=colours.luna, fontweight="bold")
    axes.set_yticks(range(len(lanes)), LANES, color=colours.ink)
    axes.set_xticks([20, 40, 60, 80], ["20 %", "40", "60", "80"], color=colours.ink)
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
