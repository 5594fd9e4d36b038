"""The picture of `lra bench convert`: every cost as its ratio to softmax, break-evens ringed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lra.bench.convert_host import Geometry
from lra.bench.convert_sheet import MEASURES, PASSES, break_evens, ratios_to_softmax
from lra.bench.figure import Panel, draw_panels
from lra.bench.sheet import Row, by_method

TICKS = (1, 1.5, 2, 3, 5, 7)


def draw(rows: list[Row], facts: dict[str, Any], stem: Path) -> list[Path]:
    settings, geometry = facts["settings"], Geometry(**facts["geometry"])
    panels = [
        _panel(rows, measured, measure)
        for measured in PASSES
        if any(row["measured"] == measured for row in rows)
        for measure in MEASURES
    ]
    subject = f"{settings['geometry']}, {geometry.told}, batch {settings['batch']}, float32"
    return draw_panels(
        panels, facts, stem, subject=subject, rings="costs less than softmax from here on"
    )


def _panel(rows: list[Row], measured: str, measure: str) -> Panel:
    groups = by_method([row for row in rows if row["measured"] == measured])
    compared: list[Row] = []
    for method, group in groups.items():
        ratios = ratios_to_softmax(groups, method, measure)
        found = [row | {"ratio": ratios.get(row["n"])} for row in group]
        # Measured where softmax was stopped: nothing to compare with, and no stop of its own.
        compared += [row for row in found if row["ratio"] or row["stopped"]]
    rings = [
        (crossing.n, 1.0)
        for crossing in break_evens(rows)
        if (crossing.measured, crossing.measure) == (measured, measure) and crossing.n is not None
    ]
    title = f"{PASSES[measured]}: {MEASURES[measure][0].partition(',')[0]}, × softmax"
    return Panel(title, compared, lambda row: row["ratio"], ticks=TICKS, rings=rings)
