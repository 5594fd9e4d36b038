"""Stage 1 of conversions, layer by layer: the KL divergence between the attention of teacher
and student while feature maps are fitted."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from lra.base.config import UserError
from lra.figures.draw import mean_and_range, panels_for, rows_for, save_figure
from lra.figures.students import budget, labels_of
from lra.report.styles import LINES, styles_of
from lra.results.record import CONVERSION, Record, read_all

NUMBERS = ("stage1", "stage1_lr", "stage1_steps", "max_length", "batch", "train_examples")


@dataclasses.dataclass(frozen=True)
class KlCurves:
    """The KL of runs that differ in nothing but the seed."""

    attention: str
    label: str
    records: list[Record]

    @property
    def options(self) -> dict[str, str]:
        return {"settings": self.label}

    @cached_property
    def seeds(self) -> list[dict[int, dict[int, float]]]:
        """Per record: layer -> step -> KL."""
        return [_by_layer(record) for record in self.records]

    def layer(self, number: int) -> dict[float, list[float]]:
        by_step: dict[float, list[float]] = defaultdict(list)
        for seed in self.seeds:
            for step, kl in seed.get(number, {}).items():
                by_step[step].append(kl)
        return by_step

    def final(self) -> float:
        """The KL at the last step, mean over layers and seeds."""
        ends = [curve[max(curve)] for seed in self.seeds for curve in seed.values()]
        return sum(ends) / len(ends)


def curves(places: Sequence[Path]) -> list[KlCurves]:
    """One entry per setting of the records in `places`, which are files or folders to search."""
    records = [record for place in places for record in _read(place)]
    settings = [
        {"task": r["task"], "model": r["model"]}
        | {k: v for k, v in r["attention"].items() if k != "name"}
        | {k: v for k, v in r["settings.recipe"].items() if k in NUMBERS}
        for r in records
    ]
    labels = labels_of([r.attention for r in records], settings)
    groups: dict[str, list[Record]] = defaultdict(list)
    for label, record in zip(labels, records, strict=True):
        groups[label].append(record)
    return [KlCurves(runs[0].attention, label, runs) for label, runs in groups.items()]


def _read(place: Path) -> list[Record]:
    """The conversions in a file or folder whose stage 1 measured a KL."""
    measured = [r for r in read_all([place]) if r.kind == CONVERSION and _measured(r)]
    if not measured:
        raise UserError(
            f"{place} holds no finished conversion whose stage 1 measured a KL: give folders of "
            "lra convert or their records (result.json)"
        )
    return measured


def _measured(record: Record) -> bool:
    return bool(record["stage1"] and record["stage1"]["curve"][0]["kl"])


def _by_layer(record: Record) -> dict[int, dict[int, float]]:
    by_layer: dict[int, dict[int, float]] = defaultdict(dict)
    for point in record["stage1"]["curve"]:
        for layer, kl in point["kl"].items():
            by_layer[_number(layer)][point["step"]] = kl
    return by_layer


def _number(layer: str) -> int:
    """3 for `bert.encoder.layer.3.attention.self`."""
    match = re.search(r"\.(\d+)\.", layer)
    return int(match[1]) if match else 0


def draw_distillation(shown: Sequence[KlCurves], stem: Path) -> list[Path]:
    """One panel per layer, all on one scale."""
    layers = sorted({number for line in shown for seed in line.seeds for number in seed})
    columns = min(len(layers), min((4, 3), key=lambda c: -len(layers) % c))  # few left empty
    size = (2.5 * columns + 2.2, 1.9 * rows_for(len(layers), columns) + 0.8)

    def fill(figure: Any) -> None:
        panels = panels_for(figure, len(layers), columns, sharex=True, sharey=True)
        for axes, number in zip(panels.flat, layers, strict=False):
            _layer(axes, shown, number)
            axes.set_title(f"layer {number}", fontsize=9)
        panels[0, 0].set_yscale("log")
        panels[0, 0].yaxis.set_major_formatter("{x:g}")
        legend = {"loc": "upper left", "bbox_to_anchor": (1.02, 1), "frameon": False}
        panels[0, -1].legend(**legend, fontsize=8, title="mean KL at the end", title_fontsize=8)
        several = any(len(line.seeds) > 1 for line in shown)
        seeds = "mean and range of the seeds" if several else "one seed"
        figure.supxlabel(f"step of stage 1; {seeds}", fontsize=9)
        figure.supylabel("KL(teacher || student), mean over rows", fontsize=9)

    title = budget([record for line in shown for record in line.records])
    return save_figure(stem, fill, size=size, title=title)


def _layer(axes: Any, shown: Sequence[KlCurves], number: int) -> None:
    from luna.convert.fit import KL_WARNING

    for line, style in zip(shown, _styles(shown), strict=True):
        by_step = line.layer(number)
        line_style = style | {"marker": "" if len(by_step) > 1 else style["marker"]}
        label = f"{line.label}: {line.final():.3f}"
        mean_and_range(axes, by_step, label=label, lw=1.5, **line_style)
    axes.axhline(
        KL_WARNING, color="0.6", lw=0.8, ls=":", label=f"{KL_WARNING}: above this a warning"
    )
    axes.grid(which="both")


def _styles(shown: Sequence[KlCurves]) -> list[dict[str, Any]]:
    """Every method has its colour; several settings of one method differ in their dashes, or in
    their colours if there is no other method."""
    first = {line.attention: line for line in reversed(shown)}
    if len(first) == 1:
        return styles_of(shown)
    methods = dict(zip(first, styles_of(list(first.values())), strict=True))
    styles: list[dict[str, Any]] = []
    seen: Counter[str] = Counter()
    for line in shown:
        style, number = methods[line.attention], seen[line.attention]
        styles.append(style | {"linestyle": LINES[number % len(LINES)]} if number else style)
        seen[line.attention] += 1
    return styles
