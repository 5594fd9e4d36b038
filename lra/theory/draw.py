"""The picture of every claim, from its numbers alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from lra.figures.draw import heading, mean_and_range, save_figure
from lra.report.looks import LINES, LUNA, PALETTE, SOFTMAX, of_method

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


def widths(figure: Any, numbers: Numbers) -> None:
    """C4: errors against width, and the surface over width and m."""
    from matplotlib.colors import LogNorm

    *panels, last = figure.subplots(1, 3, width_ratios=[1, 1, 1.3])
    titles = {"psi": "RMS of ψ − (cos, sin)", "kernels": "sup |k − k$_{NN}$| over pairs"}
    shown = {"psi": ["psi"], "kernels": ["gaussian", "softmax"]}
    for axes, key in zip(panels, shown, strict=True):
        for a, activation in enumerate(numbers["medians"]):
            for s, name in enumerate(shown[key]):
                rows = dict(zip(numbers["widths"], numbers["errors"][activation][name], strict=True))
                medians = numbers["medians"][activation][name]
                colour = PALETTE[a]
                axes.plot(list(rows), medians, LINES[s], color=colour, marker="os"[s], markersize=4,
                          label=activation if key == "psi" else f"{activation}, {name}")  # fmt: skip
                axes.fill_between(list(rows), [min(v) for v in rows.values()],
                                  [max(v) for v in rows.values()], color=colour, alpha=0.12)  # fmt: skip
        axes.set(xscale="log", yscale="log", xlabel="width", title=titles[key])
        axes.set_xticks(numbers["widths"], [str(w) for w in numbers["widths"]], fontsize=7)
        axes.minorticks_off()
        axes.grid(True)
    first = numbers["medians"]["relu"]["psi"][1]
    guide = [first * (w / numbers["widths"][1]) ** -2 for w in numbers["widths"]]
    panels[0].plot(numbers["widths"], guide, ":", color=SOFTMAX, label="width$^{-2}$")
    for axes in panels:
        axes.legend(fontsize=7)
    values = numbers["surface"]
    last.imshow(values, norm=LogNorm(), cmap="viridis_r", origin="lower", aspect="auto")
    logs = [math.log(value) for row in values for value in row]
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            light = math.log(value) < 0.6 * min(logs) + 0.4 * max(logs)
            last.text(j, i, f"{value:.2g}", ha="center", va="center", fontsize=6,
                      color="k" if light else "w")  # fmt: skip
    last.set_xticks(range(len(numbers["m"])), [str(m) for m in numbers["m"]], fontsize=7)
    last.set_yticks(range(len(values)), [str(w) for w in numbers["widths"]], fontsize=7)
    last.set(xlabel="m", ylabel="width", title="sup |k − k$_{NN,m}$|, relu, Gaussian")


def rademacher(figure: Any, numbers: Numbers) -> None:
    """C5: complexity of a fixed map, and correlation with random signs after training."""
    axes = figure.subplots()
    axes.plot(numbers["N"], [N**-0.5 for N in numbers["N"]], "--", color=SOFTMAX,
              label="bound κ Λ$_v$ / √N")  # fmt: skip
    axes.plot(numbers["N"], numbers["fixed"], "o-", color=PALETTE[0], markersize=4,
              label=f"fixed map: N$^{{{numbers['slope']:.3f}}}$")  # fmt: skip
    learned = dict(zip(numbers["learned_N"], numbers["learned"], strict=True))
    mean_and_range(axes, learned, color=LUNA, marker="D", markersize=4,
                   label="map trained on the signs (a lower bound)")  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="N tokens", ylabel="complexity / (κ Λ$_v$)")
    axes.legend(fontsize=7)
    axes.grid(True)


def runtime(figure: Any, numbers: Numbers) -> None:
    """C6: time and memory against n, slopes of every method."""
    *panels, last = figure.subplots(1, 3, width_ratios=[1, 1, 1.2])
    for axes, (measure, title, unit) in zip(panels, (
        ("train_seconds", "forward + backward, ms", 1e3), ("peak_bytes", "peak memory, MiB", 2**-20),
    ), strict=True):  # fmt: skip
        for case in ("luna", "linear", "performer", "softmax", "softmax (published)"):
            costs = {int(n): unit * cost for n, cost in numbers["costs"][measure].get(case, {}).items()}
            look = of_method(case.partition(" ")[0]) | ({"linestyle": ":"} if "(" in case else {})
            slope = numbers["slopes"][measure].get(case)
            if costs:
                axes.plot(list(costs), list(costs.values()), **look, markersize=4,
                          label=f"{case}: n$^{{{slope:.2f}}}$")  # fmt: skip
        axes.set(xscale="log", yscale="log", xlabel="n", title=title)
        axes.legend(fontsize=7)
        axes.grid(True)
    names = sorted(numbers["linear"], key=lambda case: numbers["slopes"]["train_seconds"][case])
    for i, name in enumerate(names):
        for measure, marker in (("forward_seconds", "s"), ("train_seconds", "o")):
            last.plot(numbers["slopes"][measure].get(name), i, marker, markersize=4,
                      fillstyle="none" if marker == "s" else "full",
                      color=PALETTE[0] if numbers["linear"][name] else SOFTMAX)  # fmt: skip
    last.axvspan(0.9, 1.1, color="0.92")
    last.axvspan(1.9, 2.1, color="0.92")
    last.set_yticks(range(len(names)), names, fontsize=7)
    last.set(xlabel="exponent of n (squares: forward)", title="blue: linear methods; grey: ± 0.1")
    last.grid(True, axis="x")


def trained(figure: Any, numbers: Numbers) -> None:
    """Spectrum and error of the projections, before and after training."""
    from itertools import pairwise

    runs = numbers["runs"]
    for row, (name, states) in zip(figure.subplots(len(runs), 2, squeeze=False), runs.items(), strict=True):
        colours = {"start": "0.55", "trained": of_method(name.split()[0])["color"]}
        for state, found in states.items():
            values = [value for value in found["spectrum"] if value > 1e-14]
            row[0].plot(range(1, len(values) + 1), values, color=colours[state],
                        label=f"{state}: effective rank {found['rank']:.1f}")  # fmt: skip
            low, high = min(found["redrawn"]), max(found["redrawn"])
            edges = [low + (high - low) * i / 12 for i in range(13)]
            counts = [sum(a <= e <= b for e in found["redrawn"]) for a, b in pairwise(edges)]
            row[1].stairs(counts, edges, fill=True, alpha=0.4, color=colours[state],
                          label=f"{state}: fresh projections")  # fmt: skip
            row[1].axvline(found["error"], color=colours[state], linewidth=2,
                           linestyle="-" if state == "trained" else "--", label=f"{state}: its own")  # fmt: skip
        row[0].set(yscale="log", xlabel="number of the eigenvalue", ylabel="eigenvalue / largest",
                   title=name.split()[0])  # fmt: skip
        row[1].set(xscale="log", xlabel="‖A − A$_∞$‖ / ‖A$_∞$‖", ylabel="draws")
        for axes in row:
            axes.legend(fontsize=7)
            axes.grid(True)


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
    "C4": (widths, (11, 3.8)),
    "C5": (rademacher, (5.5, 4)),
    "C6": (runtime, (12, 4.4)),
    "trained": (trained, (9, 6.4)),
}
