"""The picture of every claim, from its numbers alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from lra.figures.draw import finely_ticked, heading, mean_and_range, save_figure
from lra.report.looks import LINES, LUNA, PALETTE, SOFTMAX, of_method

Numbers = dict[str, Any]
KINDS = ("relu psi", "sigmoid psi", "rff")


def save(claim: str, numbers: Numbers, folder: Path) -> list[Path]:
    draw, size = PICTURES[claim]

    def fill(figure: Any) -> None:
        draw(figure, numbers)
        for axes in figure.axes:
            axes.grid(not axes.images)
            if axes.get_legend_handles_labels()[0]:
                axes.legend(fontsize=7, framealpha=0.9)
        heading(figure, f"{claim}: {numbers['verdict']}")

    return save_figure(folder / claim, fill, size=size)


def spectra(figure: Any, numbers: Numbers) -> None:
    """C1: eigenvalues of every kind of map, and the smallest of them."""
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.1])
    *_, control = names = list(numbers["spectra"])
    named = ("published: relu outputs", "recommended: exp outputs", "sigmoid units", "rff", control)
    colours = dict(zip(named, (LUNA, *PALETTE[:3], SOFTMAX), strict=True))
    for i, name in enumerate(names):
        values, colour = (
            [v for v in numbers["spectra"][name] if v > 1e-16],
            colours.get(name, "0.7"),
        )
        look = {"color": colour, "zorder": 3 if name in colours else 2}
        left.plot(
            range(1, len(values) + 1), values, **look, label=name if name in colours else None
        )
        smallest = numbers["smallest"][name]
        right.plot(smallest, [i] * len(smallest), "o", color=colour, markersize=4)
    left.plot([], color="0.7", label="the other kinds")
    left.axvline(64, color="0.6", linewidth=0.8, linestyle=":")
    left.set(yscale="log", ylim=(1e-19, 3), xlabel="number of the eigenvalue (dotted: M L)",
             ylabel="eigenvalue / largest, down to rounding")  # fmt: skip
    right.axvspan(-1e-12, 1e-12, color="0.92")
    right.set_xscale("symlog", linthresh=1e-17, linscale=0.5)
    ticks = ["-1", "-1e-5", "-1e-10", "-1e-15", "1e-15"]
    right.set_xticks([float(tick) for tick in ticks], ticks)
    right.set_yticks(range(len(names)), names, fontsize=7)
    right.invert_yaxis()
    right.set(xlabel="smallest / largest, every draw\n(grey: rounding)")


def bounded(figure: Any, numbers: Numbers) -> None:
    """C2: tails with their bound, rates, and root mean square errors."""
    above, (rates, errors) = figure.subplots(2, 2)
    for axes, (kind, found) in zip(above, numbers["features"].items(), strict=True):
        look, variance, levels = _kind(kind), found["deviation"] ** 2, found["levels"]
        for i, eps in enumerate(levels):
            seen = [(m * eps**2 / variance, P) for m, P in zip(found["m"], found["tails"][i],
                    strict=True) if found["draws"] // m * P >= 20]  # fmt: skip
            axes.plot(*zip(*seen, strict=True), "o-", color=_shade(i / len(levels)), markersize=3,
                      label=f"ε = {eps / variance**0.5:.2g} σ")  # fmt: skip
        limits = [min(1.0, 2 * math.exp(-found["c"] * variance * x)) for x in range(26)]
        axes.plot(range(26), limits, "--", color=SOFTMAX, label="bound")
        axes.set(yscale="log", xlabel="m ε² / σ²", ylabel="P(|k$_m$ − k| ≥ ε)", ylim=(1e-6, 1.6),
                 title=f"{kind}, σ = {variance**0.5:.2g}")  # fmt: skip
        kept = [(eps / variance**0.5, rate)
                for eps, rate in zip(levels, found["rates"], strict=True) if rate]  # fmt: skip
        rates.plot(*zip(*kept, strict=True), **look | {"linestyle": ""},
                   label=f"{kind}: ε$^{{{found['exponent']:.2f}}}$")  # fmt: skip
        xs = [eps / variance**0.5 for eps in levels]
        rates.plot(xs, [found["c"] * eps**2 for eps in levels], "--", color=look["color"],
                   label=f"{kind}: bound")  # fmt: skip
        errors.plot(
            found["m"], found["rmse"], **look, label=f"{kind}: m$^{{{found['slope']:.3f}}}$"
        )
        errors.plot(found["m"], [(variance / m) ** 0.5 for m in found["m"]], ":", color=SOFTMAX)
    rates.plot(xs, [x**2 / 2 for x in xs], color="0.5", label="(ε / σ)² / 2", zorder=1)
    rates.set(xscale="log", yscale="log", xlabel="ε / σ", ylabel="slope of −log P in m")
    finely_ticked(rates.xaxis, (1, 2, 3, 5))
    errors.set(xscale="log", yscale="log", xlabel="m", ylabel="RMSE of k$_m$ (dotted: σ / √m)")
    _ticks(errors, found["m"])


def unbounded(figure: Any, numbers: Numbers) -> None:
    """C3: -log P / m against eps, and its local exponent."""
    *panels, last = figure.subplots(1, 4, width_ratios=[1, 1, 1, 1.1])
    for axes, (kind, found) in zip(panels, numbers["features"].items(), strict=True):
        look = {key: _kind(kind)[key] for key in ("color", "linestyle")}
        for i, (m, points) in enumerate(found["measured"].items()):
            axes.plot(*zip(*points, strict=True), "os^"[i], color=_shade(i / 3), markersize=3,
                      label=f"m = {m}")  # fmt: skip
        axes.plot(found["eps"], found["limit"], color=look["color"], label="limit of large m")
        axes.plot(found["eps"], found["bound"], "--", color=SOFTMAX, label="bound")
        axes.set(xscale="log", yscale="log", xlabel="ε / σ", title=kind, xlim=(0.1, 45),
                 ylim=(1e-5, 30))  # fmt: skip
        last.plot(found["eps"], found["exponents"], **look, label=kind)
    panels[0].set_ylabel("−log P(|k$_m$ − k| ≥ ε) / m")
    last.set(xscale="log", xlabel="ε / σ", title="exponent of ε in the limit", ylim=(0.5, 4))


def widths(figure: Any, numbers: Numbers) -> None:
    """C4: errors against width, and the surface over width and m."""
    from matplotlib.colors import LogNorm

    one, two, last = figure.subplots(1, 3, width_ratios=[1, 1, 1.3])
    grid, values = numbers["widths"], numbers["surface"]
    for i, (name, axes) in enumerate({"psi": one, "gaussian": two, "softmax": two}.items()):
        for colour, (activation, errors) in zip(PALETTE, numbers["errors"].items(), strict=False):
            rows = dict(zip(grid, errors[name], strict=True))
            look = {"color": colour, "linestyle": LINES[i // 2], "marker": "os"[i // 2]}
            mean_and_range(axes, rows, **look, markersize=4, label=f"{activation}, {name}")
    first = numbers["medians"]["relu"]["psi"][0]
    one.plot(
        grid, [first * (w / grid[0]) ** -2 for w in grid], ":", color=SOFTMAX, label="width$^{-2}$"
    )
    for axes, title in ((one, "RMS of ψ − (cos, sin)"), (two, "sup |k − k$_{NN}$| over pairs")):
        axes.set(xscale="log", yscale="log", xlabel="width", title=title)
        _ticks(axes, grid)
    last.imshow(values, norm=LogNorm(), cmap="viridis_r", origin="lower", aspect="auto")
    logs = [math.log(value) for row in values for value in row]
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            light = math.log(value) < 0.6 * min(logs) + 0.4 * max(logs)
            last.text(j, i, f"{value:.2g}", ha="center", va="center", fontsize=6,
                      color="k" if light else "w")  # fmt: skip
    last.set_xticks(range(len(numbers["m"])), numbers["m"], fontsize=7)
    last.set_yticks(range(len(values)), grid, fontsize=7)
    last.set(xlabel="m", ylabel="width", title="sup |k − k$_{NN,m}$|, relu, Gaussian")


def rademacher(figure: Any, numbers: Numbers) -> None:
    """C5: complexity of a fixed map, and correlation with random signs after training."""
    axes, N = figure.subplots(), numbers["N"]
    axes.plot(N, [n**-0.5 for n in N], "--", color=SOFTMAX, label="bound 1 / √N of a fixed map")
    axes.plot(N, numbers["fixed"], "o-", color=PALETTE[0], markersize=4,
              label=f"fixed map: N$^{{{numbers['slope']:.3f}}}$")  # fmt: skip
    learned = dict(zip(numbers["learned_N"], numbers["learned"], strict=True))
    mean_and_range(axes, learned, color=LUNA, marker="D", markersize=4,
                   label="map trained on the signs (a lower bound)")  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="N tokens", ylabel="complexity / (κ Λ$_v$)")


def runtime(figure: Any, numbers: Numbers) -> None:
    """C6: exponents of n of every method."""
    axes, slopes = figure.subplots(), numbers["slopes"]
    names = sorted(numbers["linear"], key=slopes["train_seconds"].get)
    for measure, marker, colour, label in (("train_seconds", "o", PALETTE[0], "forward + backward"),
        ("forward_seconds", "s", PALETTE[1], "forward"), ("peak_bytes", "^", PALETTE[2], "memory"),
    ):  # fmt: skip
        axes.plot([slopes[measure].get(name) for name in names], range(len(names)), marker,
                  color=colour, markersize=5, fillstyle="none", label=label)  # fmt: skip
    for exponent in (1, 2):
        axes.axvspan(exponent - 0.1, exponent + 0.1, color="0.92")
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(xlabel="exponent of n (grey: 1 ± 0.1 and 2 ± 0.1)")


def trained(figure: Any, numbers: Numbers) -> None:
    """Spectrum and error of the projections, before and after training."""
    panels = figure.subplots(len(numbers["runs"]), 2, squeeze=False)
    for (left, right), (name, states) in zip(panels, numbers["runs"].items(), strict=True):
        colours = {"start": "0.55", "trained": of_method(name.split()[0])["color"]}
        for i, (state, found) in enumerate(states.items()):
            values, colour = [v for v in found["spectrum"] if v > 1e-14], colours[state]
            left.plot(range(1, len(values) + 1), values, color=colour,
                      label=f"{state}: effective rank {found['rank']:.1f}")  # fmt: skip
            right.plot(
                found["redrawn"], [i] * len(found["redrawn"]), "|", color=colour, markersize=12
            )
            right.plot(found["error"], i, "D", color=colour, markeredgecolor="k")
        left.set(yscale="log", xlabel="number of the eigenvalue", ylabel="eigenvalue / largest",
                 title=name.partition(",")[0])  # fmt: skip
        right.set(xscale="log", ylim=(-0.6, 1.6), xlabel="‖A − A$_∞$‖ / ‖A$_∞$‖",
                  title="lines: fresh projections, diamond: its own")  # fmt: skip
        right.set_yticks((0, 1), list(states))
        finely_ticked(right.xaxis, (1, 2, 5))


def _kind(kind: str) -> dict[str, Any]:
    """The look of a kind of features."""
    i = KINDS.index(kind)
    return {
        "color": (LUNA, *PALETTE)[i],
        "linestyle": LINES[i],
        "marker": "Dos"[i],
        "markersize": 4,
    }


def _shade(part: float) -> Any:
    from matplotlib import colormaps

    return colormaps["viridis"](0.85 * part)


def _ticks(axes: Any, xs: list[int]) -> None:
    axes.set_xticks(xs, xs, fontsize=7)
    axes.minorticks_off()


PICTURES = {
    "C1": (spectra, (9, 4.4)),
    "C2": (bounded, (9, 7)),
    "C3": (unbounded, (11, 3.6)),
    "C4": (widths, (11, 3.8)),
    "C5": (rademacher, (5.5, 4)),
    "C6": (runtime, (7, 4.6)),
    "trained": (trained, (9, 5.6)),
}
