"""The picture of `lra bench convert`: the ratio of every cost to that of softmax, by length."""

from __future__ import annotations

from pathlib import Path

from lra.bench.convert import ORIGINAL
from lra.bench.rows import MEASURES, BenchResult, break_even, ratios
from lra.figures.bench_lengths import LengthPanel, draw_panels

TICKS = (1, 1.5, 2, 3, 5, 7)
PASSES = {"inference": "Inference", "step": "Training step"}


def draw(result: BenchResult, stem: Path) -> list[Path]:
    settings = result.facts["settings"]
    panels = [
        panel_of(result, group, measure)
        for group in PASSES
        if result.select(group, "seconds")
        for measure in ("seconds", "peak_bytes")
    ]
    subject = f"{settings['geometry']}, {settings['model']}, batch {settings['batch']}, float32"
    rings = "costs less than softmax from here on"
    return draw_panels(result, panels, stem, subject=subject, rings=rings)


def panel_of(result: BenchResult, group: str, measure: str) -> LengthPanel:
    found = result.select(group, measure)
    to_softmax = {case: ratios(found, case, ORIGINAL) for case in found}
    # Lengths at which softmax alone was stopped are left out, as there is no ratio.
    costs = {
        case: {n: own.get(n) for n, row in found[case].items() if n in own or not row.values}
        for case, own in to_softmax.items()
    }
    crossings = [break_even(own)[1] for case, own in to_softmax.items() if own and case != ORIGINAL]
    rings = [(n, 1.0) for n in crossings if n is not None]
    title = f"{PASSES[group]}: {MEASURES[measure].title}, × softmax"
    return LengthPanel(title, group, costs, ticks=TICKS, rings=rings)
