"""Time and memory of attentions by the number of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from lra.bench.result import BenchResult
from lra.figures.bench import Costs, costs_of
from lra.figures.style import PHONE, dashed, draw_lines, save_figure, style_of, ticked
from lra.looks import look_of

FINDING = (
    "At 8,192 tokens LUNA needs less than a {share}th of the time of fused softmax on a CPU, and "
    "about as much memory"
)
SHARE, TOKENS = 35, 8192  # of FINDING
PANELS = {
    "forward + backward time, ms": "time, forward and backward, ms",
    "peak memory, MiB": "peak memory, MiB",
}
STORED = "softmax (published)"
NAMES = {STORED: "Softmax, stored", "softmax": "Softmax, fused"}
SHOWN = (STORED, "softmax", "nystrom", "performer", "luna", "linear")
ELSE = ("uniform",)  # averages, which costs nothing


def costs(results: Path) -> tuple[dict[str, Costs], dict[str, Any]]:
    """The costs of each panel, and the facts of the benchmark."""
    (file,) = sorted((results / "bench").glob("attention-*.json"))
    bench = BenchResult.load(file)
    (measures,) = costs_of(bench).values()
    return {title: measures[title] for title in PANELS}, bench.facts


def draw(results: Path, out: Path) -> list[Path]:
    measures, facts = costs(results)

    def fill(figure: Any) -> None:
        panels = figure.subplots(2, 1, sharex=True)
        for axes, (title, said) in zip(panels, PANELS.items(), strict=True):
            axes.set(xscale="log", yscale="log")
            draw_lines(axes, lines_of(measures[title]), gap=0.085)
            axes.set_title(said)
            lengths = [*measures[title]["luna"].index]
            axes.set_xticks(lengths, [f"{n:,}" if i % 2 else "" for i, n in enumerate(lengths)])
            axes.minorticks_off()
            ticked(axes.yaxis, (1,))
        panels[-1].set_xlabel("tokens")

    title = (
        f"{FINDING.format(share=SHARE)}\n{facts['machine']['device']}, one thread, 2 heads of 32, "
        "one sequence. Stored: softmax as published, with its matrix of weights. A line ends where "
        "a call would take more than 4 s."
    )
    return save_figure(out / "lengths", fill, title, 8, PHONE)


def lines_of(costs: Costs) -> list[tuple[str, pd.DataFrame, dict[str, Any]]]:
    """Lines with names of SHOWN, of all others without."""
    looks = dashed([style_of(case.split()[0]) for case in SHOWN])
    named = [
        (NAMES.get(case) or look_of(case).name, costs[case], style or {})
        for case, style in zip(SHOWN, looks, strict=True)
    ]
    grey = [case for case in costs if case not in (*SHOWN, *ELSE)]
    return [*(("", costs[case], {}) for case in grey), *named]
