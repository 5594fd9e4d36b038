"""Schemes: how LUNA turns queries and keys into features, and how a command becomes a table."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from lra.figures.style import INK, LUNA, NOTE, save_figure

# Of every scheme its title, and its boxes: a name and what happens there.
SCHEMES = {
    "scheme-luna": (
        "LUNA (2025): learned features, then linear attention",
        [
            ("query or key", "x\nd numbers"),
            ("project", "u = wₘ·x\nM directions,\nlearned"),
            ("bend", "ψₗ(u)\nL functions,\neach a small\nnetwork"),
            ("features", "φ(x)\nM × L\nnumbers"),
            ("sum keys", "S = Σ φ(k) vᵀ\nz = Σ φ(k)"),
            ("read", "φ(q)ᵀS\n÷ φ(q)ᵀz\nn tokens: O(n)"),
        ],
    ),
    "scheme-record": (
        "From a command to a number in a table",
        [
            ("command", "lra train\ntask=listops\nattention=luna"),
            ("settings", "checked;\ntheir hash is\nthe identity"),
            ("data", "prepared once,\nwith a\nfingerprint"),
            ("gate", "parameters\nand FLOPs\ncounted"),
            ("training", "resumes to\nthe bit"),
            ("record", "settings, score,\nall answers"),
            ("table", "mean ± deviation;\nrecomputed\nby --check"),
        ],
    ),
}


def draw(arguments: Namespace) -> list[Path]:
    """A row of boxes per scheme, with an arrow from each to the next."""
    paths = []
    for stem, (title, boxes) in SCHEMES.items():

        def fill(figure: Any, boxes: list[tuple[str, str]] = boxes) -> None:
            axes = figure.subplots()
            axes.axis("off")
            axes.set(xlim=(-0.5, len(boxes) - 0.5), ylim=(-1.05, 0.5))
            for x, (name, text) in enumerate(boxes):
                colour = LUNA if name in ("bend", "record") else INK
                box = {"boxstyle": "round,pad=0.4", "fc": colour, "ec": "none"}
                axes.annotate(
                    name,
                    (x, 0.2),
                    ha="center",
                    va="center",
                    fontweight="bold",
                    color="white",
                    fontsize=8,
                    bbox=box,
                )
                axes.annotate(text, (x, -0.2), ha="center", va="top", fontsize=8, linespacing=1.4)
                if x:
                    axes.annotate(
                        "",
                        (x - 0.38, 0.2),
                        (x - 0.62, 0.2),
                        arrowprops={"arrowstyle": "->", "color": NOTE},
                    )

        paths += save_figure(arguments.out / stem, fill, title, 1.7)
    return paths
