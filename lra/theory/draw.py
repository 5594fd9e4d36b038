"""The picture of every claim, from its numbers alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from lra.figures.draw import heading, save_figure
from lra.report.looks import LINES, LUNA, PALETTE, SOFTMAX

Numbers = dict[str, Any]


def save(claim: str, numbers: Numbers, folder: Path) -> list[Path]:
    draw, size = PICTURES[claim]

    def fill(figure: Any) -> None:
        draw(figure, numbers)
        heading(figure, f"{claim}: {numbers['verdict']}")

    return save_figure(folder / claim, fill, size=size)


def spectra(figure: Any, numbers: Numbers) -> None:
    """C1: eigenvalues of every variant, and the smallest of them."""
    from lra.theory.spectra import CONTROL, TOLERANCE

    left, right = figure.subplots(1, 2, width_ratios=[1, 1.1])
    named = ["published: relu outputs", "sigmoid units", "rff", "recommended: exp outputs", CONTROL]
    colours = dict(zip(named, (LUNA, *PALETTE[:3], SOFTMAX), strict=True))
    names = list(numbers["spectra"])
    for name in names:
        values = [value for value in numbers["spectra"][name] if value > 0]
        look = {"color": colours.get(name, "0.7"), "zorder": 3 if name in colours else 2}
        left.plot(range(1, len(values) + 1), values, **look, linewidth=1.5,
                  label=name if name in colours else None)  # fmt: skip
    left.plot([], color="0.7", label="the other kinds")
    left.set(yscale="log", xlabel="number of the eigenvalue", ylim=(1e-20, 3),
             ylabel="eigenvalue / largest (where positive)")  # fmt: skip
    left.axvline(64, color="0.6", linewidth=0.8, linestyle=":")
    left.annotate("M L = 64", (64, 1e-4), (3, 0), textcoords="offset points", fontsize=7)
    left.legend(fontsize=7, loc="lower left")
    for i, name in enumerate(names):
        smallest = numbers["smallest"][name]
        right.plot(smallest, [i] * len(smallest), "o", color=colours.get(name, "0.5"), markersize=4)
    right.axvspan(-TOLERANCE, TOLERANCE, color="0.92")
    right.set_xscale("symlog", linthresh=1e-17, linscale=0.5)
    ticks = ["-1", "-1e-5", "-1e-10", "-1e-15", "1e-15"]
    right.set_xticks([float(tick) for tick in ticks], ticks)
    right.set_yticks(range(len(names)), names, fontsize=7)
    right.invert_yaxis()
    right.set(xlabel="smallest / largest, every draw\n(grey: rounding)")
    for axes, direction in ((left, "both"), (right, "x")):
        axes.grid(True, axis=direction)


def bounded(figure: Any, numbers: Numbers) -> None:
    """C2: tails with their bound, rates, and root mean square errors."""
    above, (rates, errors) = figure.subplots(2, 2)
    for axes, (kind, found) in zip(above, numbers["features"].items(), strict=True):
        variance = found["deviation"] ** 2
        for i, eps in enumerate(found["levels"]):
            seen = [(m * eps**2 / variance, P)
                    for m, P in zip(found["m"], found["tails"][i], strict=True)
                    if found["draws"] // m * P >= 20]  # fmt: skip
            axes.plot(*zip(*seen, strict=True), "o-", color=_shade(i / len(found["levels"])),
                      markersize=3, linewidth=1, label=f"ε = {eps / variance**0.5:.2g} σ")  # fmt: skip
        xs = [0.5 * i for i in range(61)]
        limits = [min(1.0, 2 * math.exp(-found["c"] * variance * x)) for x in xs]
        axes.plot(xs, limits, "--", color=SOFTMAX, label="bound")
        axes.set(yscale="log", xlabel="m ε² / σ²", ylabel="P(|k$_m$ − k| ≥ ε)", xlim=(0, 25),
                 title=f"{kind}, σ = {variance**0.5:.2g}", ylim=(1e-6, 1.6))  # fmt: skip
        axes.legend(fontsize=7, loc="lower left")
        axes.grid(True)
    for kind, found in numbers["features"].items():
        look, variance = _kind(kind), found["deviation"] ** 2
        kept = [(eps, rate) for eps, rate in zip(found["levels"], found["rates"], strict=True)
                if rate]  # fmt: skip
        rates.plot(*zip(*kept, strict=True), **look | {"linestyle": ""},
                   label=f"{kind}: ε$^{{{found['exponent']:.2f}}}$")  # fmt: skip
        eps = found["levels"]
        rates.plot(eps, [e**2 / (2 * variance) for e in eps], color=look["color"], linewidth=0.8,
                   label="ε² / (2 σ²)")  # fmt: skip
        rates.plot(eps, [found["c"] * e**2 for e in eps], "--", color=look["color"], linewidth=1,
                   label="bound")  # fmt: skip
        errors.plot(found["m"], found["rmse"], **look, label=f"{kind}: m$^{{{found['slope']:.3f}}}$")
        root = [found["deviation"] * m**-0.5 for m in found["m"]]
        errors.plot(found["m"], root, ":", color=SOFTMAX, linewidth=1)
    rates.set(xscale="log", yscale="log", xlabel="ε", ylabel="slope of −log P in m")
    errors.set(xscale="log", yscale="log", xlabel="m", ylabel="RMSE of k$_m$; dotted: σ / √m")
    errors.set_xticks(found["m"], [f"{m}" for m in found["m"]])
    errors.minorticks_off()
    for axes in (rates, errors):
        axes.legend(fontsize=7)
        axes.grid(True)


def unbounded(figure: Any, numbers: Numbers) -> None:
    """C3: -log P / m against eps, and its local exponent."""
    *panels, last = figure.subplots(1, 4, width_ratios=[1, 1, 1, 1.1])
    for axes, (kind, found) in zip(panels, numbers["features"].items(), strict=True):
        look = _kind(kind)
        for i, (m, points) in enumerate(found["measured"].items()):
            axes.plot(*zip(*points, strict=True), "os^v"[i], color=_shade(i / 3), markersize=3,
                      label=f"m = {m}")  # fmt: skip
        axes.plot(found["eps"], found["limit"], color=look["color"], label="limit of large m")
        axes.plot(found["eps"], found["bound"], "--", color=SOFTMAX, label="bound")
        axes.set(xscale="log", yscale="log", xlabel="ε / σ", title=kind, xlim=(0.2, 45),
                 ylim=(1e-5, 20))  # fmt: skip
        axes.grid(True)
        last.plot(found["eps"], found["exponents"], color=look["color"],
                  linestyle=look["linestyle"], label=kind)  # fmt: skip
    panels[0].legend(fontsize=7, loc="lower right")
    panels[0].set_ylabel("−log P(|k$_m$ − k| ≥ ε) / m")
    last.set(xscale="log", xlabel="ε / σ", ylabel="exponent of ε in the limit", ylim=(0.5, 4))
    last.legend(fontsize=7)
    for level in (1, 2):
        last.axhline(level, color="0.6", linewidth=0.8, linestyle=":")
    last.grid(True)


def _kind(kind: str) -> dict[str, Any]:
    """The look of a kind of features."""
    place = ("relu psi", "sigmoid psi", "rff").index(kind)
    return {"color": (LUNA, *PALETTE)[place], "linestyle": LINES[place], "marker": "Dos"[place],
            "markersize": 4}  # fmt: skip


def _shade(part: float) -> Any:
    from matplotlib import colormaps

    return colormaps["viridis"](0.85 * part)


PICTURES = {
    "C1": (spectra, (9, 4.4)),
    "C2": (bounded, (9, 7)),
    "C3": (unbounded, (11, 3.6)),
}
