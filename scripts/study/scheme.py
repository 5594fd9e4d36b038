"""Schemes: how LUNA turns queries and keys into features, how a command becomes a table, and how
the tokens of each family meet.

    python scripts/study/scheme.py

The pictures go to results/figures; `make pictures` draws them too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lra.figures.style import INK, NOTE, PHONE, panels_for, save_figure
from lra.looks import BLACK, BLUE, FAMILIES, LUNA, ORANGE, family_named

# Of every scheme its title, and its boxes: a name and what happens there.
SCHEMES = {
    "scheme-luna": (
        "LUNA (2025) learns the functions that make features; the rest is linear attention",
        [
            ("query or key", "x, d numbers"),
            ("project", "u = wₘ·x\nM directions, learned"),
            ("bend", "ψₗ(u), L functions,\neach a small network"),
            ("features", "φ(x), M × L numbers"),
            ("sum keys", "S = Σ φ(k) vᵀ\nz = Σ φ(k)"),
            ("read", "φ(q)ᵀS ÷ φ(q)ᵀz\nn tokens: O(n)"),
        ],
    ),
    "scheme-record": (
        "Every number in a table goes back over a record to a command",
        [
            ("command", "lra train task=listops\nattention=luna"),
            ("settings", "checked; their hash\nis the identity"),
            ("data", "prepared once,\nwith a fingerprint"),
            ("gate", "parameters and FLOPs\ncounted"),
            ("training", "resumes to the bit"),
            ("record", "settings, score,\nall answers"),
            ("table", "mean ± deviation;\nrecomputed by --check"),
        ],
    ),
}


FAMILIES_TITLE = "Families of methods differ in how their tokens meet"
TOKENS = 16  # of the pictures of families
WINDOW = 3
# Below the picture of each family.
CAPTIONS = {
    "softmax and sparse": "a weight a pair;\nor some (dashed)",
    "low rank": "through three\nlandmarks",
    "fixed kernels": "φ(q)·φ(k),\nφ = elu + 1",
    "learned kernels": "φ(q)·φ(k),\nφ learned",
    "gates": "earlier tokens,\nfading by gates",
    "delta rule": "the last token of\na key (of three)",
    "state space": "by distance:\nfading waves",
    "convolution": "by distance:\nany numbers",
    "control": "1 / n",
}


def draw(out: Path) -> list[Path]:
    paths = [path for stem in SCHEMES for path in draw_boxes(out / stem)]
    return paths + draw_families(out / "scheme-families")


def draw_boxes(stem: Path) -> list[Path]:
    """Boxes from the top down, and to the right of each what happens there."""
    title, boxes = SCHEMES[stem.name]

    def fill(figure: Any) -> None:
        axes = figure.subplots()
        axes.axis("off")
        axes.set(xlim=(0, 1), ylim=(0.45 - len(boxes), 0.4))
        for i, (name, text) in enumerate(boxes):
            colour = LUNA if name in ("bend", "record") else INK
            box = {"boxstyle": "round,pad=0.4", "fc": colour, "ec": "none"}
            written = {"va": "center", "linespacing": 1.25}
            axes.annotate(
                name, (0.2, -i), ha="center", color="white", fontweight="bold", bbox=box, **written
            )
            axes.annotate(text, (0.42, -i), **written)
            if i:
                arrow = {"arrowstyle": "->", "color": NOTE}
                axes.annotate("", (0.2, 0.26 - i), (0.2, 0.74 - i), arrowprops=arrow)

    return save_figure(stem, fill, title, 0.7 + 0.62 * len(boxes), PHONE)


def draw_families(stem: Path) -> list[Path]:
    """The weights that a small method of each family gives a few random tokens."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("signed", [BLUE, "white", BLACK])

    def fill(figure: Any) -> None:
        panels = panels_for(figure, len(CAPTIONS), 3).flat
        for axes, (name, weights) in zip(panels, family_weights(), strict=False):
            most = np.abs(weights).max()
            axes.imshow(weights, cmap=colours, vmin=-most, vmax=most, interpolation="nearest")
            colour = family_named(name).colour
            said = name.replace(" and ", "\nand ")
            axes.set_title(said, color=colour, fontweight="bold")
            axes.set_xlabel(CAPTIONS[name], color=NOTE)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(visible=True, color=NOTE, linewidth=0.5)
            if name == "softmax and sparse":
                ends = np.array([-0.5, TOKENS - 0.5])
                axes.autoscale(False)
                for shift in (-WINDOW, WINDOW):
                    axes.plot(ends, ends + shift, "--", color=ORANGE, lw=1)

    title = (
        f"{FAMILIES_TITLE}\n"
        "Row i, column j: what token i takes of token j; grey adds, blue takes away. Sixteen "
        "random tokens. Gates and the delta rule: causal form."
    )
    return save_figure(stem, fill, title, 8.4, PHONE)


def family_weights() -> Iterator[tuple[str, np.ndarray]]:
    """Weights (n, n) of an example of each family, in the order of FAMILIES; a stack has those of
    its layers."""
    rng = np.random.default_rng(1)
    q, k = rng.normal(size=(2, TOKENS, 4))
    directions = rng.normal(size=(4, 12))
    lag = np.subtract.outer(np.arange(TOKENS), np.arange(TOKENS))
    examples = {
        "softmax and sparse": softmax(q @ k.T),
        "low rank": softmax(q @ k[2::5].T) @ softmax(k[2::5] @ k.T),
        "fixed kernels": kernel(elu(q) + 1, elu(k) + 1),
        "learned kernels": waves(q, directions) @ waves(k, directions).T,
        "gates": gated(q, k, rng.uniform(0.6, 0.98, TOKENS)),
        "delta rule": delta(*unit_rows(rng.normal(size=(3, 4))[rng.integers(3, size=(2, TOKENS))])),
        "state space": 0.86 ** np.abs(lag) * np.cos(0.75 * lag),
        "convolution": rng.normal(size=2 * TOKENS)[lag],
        "control": np.full((TOKENS, TOKENS), 1 / TOKENS),
    }
    for family in FAMILIES:
        if family.name in examples:
            yield family.name, examples[family.name]


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def elu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, np.expm1(x))


def kernel(of_q: np.ndarray, of_k: np.ndarray) -> np.ndarray:
    weights = of_q @ of_k.T
    return weights / weights.sum(1, keepdims=True)


def waves(x: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Signed features, as a learned map may give them."""
    return np.concatenate([np.sin(x @ directions), np.cos(x @ directions)], 1)


def gated(q: np.ndarray, k: np.ndarray, gates: np.ndarray) -> np.ndarray:
    """(q_i . k_j) times the gates of the tokens behind j, up to i."""
    total = np.log(gates).cumsum()
    return np.tril(q @ k.T * np.exp(np.minimum(total[:, None] - total, 0)))


def unit_rows(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def delta(q: np.ndarray, k: np.ndarray, rate: float = 0.9) -> np.ndarray:
    """What S_t = S_(t-1) + rate k_t (v_t - k_t S_(t-1)) gives when it is read with q_t."""
    between = rate * np.tril(k @ k.T, -1)
    return rate * np.tril(q @ k.T) @ np.linalg.inv(np.eye(len(k)) + between)


if __name__ == "__main__":
    print(*draw(Path("results/figures")), sep="\n")
