"""Stage 1 of conversions: the KL divergence between the attention of teacher and student, layer by
layer while feature maps are fitted."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.base.config import UserError
from lra.figures.draw import WIDTH, finely_ticked, panels_for, rows_for, save_figure
from lra.figures.students import budget, labels_of
from lra.figures.style import DASHES, styles_of
from lra.results.record import Record, read_all
from lra.runs.schema import CONVERSION

if TYPE_CHECKING:
    from pandas import DataFrame

NUMBERS = ("stage1", "stage1_lr", "stage1_steps", "max_length", "batch", "train_examples")


def draw(arguments: Namespace) -> list[Path]:
    runs = [run for run in read_all(arguments.runs) if run.kind == CONVERSION and run["stage1"]]
    runs = [run for run in runs if run["stage1"]["curve"][0]["kl"]]
    if not runs:
        raise UserError("no finished conversion whose stage 1 measured a KL: give others' folders")
    methods = "-".join(dict.fromkeys(run.attention for run in runs))
    return draw_distillation(runs, arguments.out / f"distillation-{methods}")


def curves(records: Sequence[Record]) -> DataFrame:
    """A row per record, layer and step. Records of one label differ in the seed only; `final` is
    the KL of a label at its last step, mean over layers and seeds."""
    import pandas as pd

    settings = [{"task": r["task"], "model": r["model"]}
                | {k: v for k, v in r["attention"].items() if k != "name"}
                | {k: v for k, v in r["settings.recipe"].items() if k in NUMBERS}
                for r in records]  # fmt: skip
    labels = labels_of([r.attention for r in records], settings)
    frame = pd.DataFrame(
        {"record": i, "method": record.attention, "label": label, "step": point["step"], "kl": kl,
         "layer": int(re.findall(r"\.(\d+)\.", layer)[0])}
        for i, (record, label) in enumerate(zip(records, labels, strict=True))
        for point in record["stage1"]["curve"]
        for layer, kl in point["kl"].items()
    )  # fmt: skip
    ends = frame.sort_values("step").groupby(["label", "record", "layer"]).kl.last()
    return frame.assign(final=frame.label.map(ends.groupby("label").mean()))


def draw_distillation(records: Sequence[Record], stem: Path) -> list[Path]:
    """One panel per layer, all on one scale."""
    from luna.convert.fit import KL_WARNING

    frame = curves(records)
    lines = frame.groupby("label", sort=False).method.first()
    dashes = lines.groupby(lines).cumcount() % len(DASHES)  # lines of one method differ in dashes
    layers = sorted(frame.layer.unique())
    columns = min(len(layers), 3)

    def fill(figure: Any) -> None:
        panels = panels_for(figure, len(layers), columns, sharex=True, sharey=True)
        for axes, number in zip(panels.flat, layers, strict=False):
            for label, style, i in zip(lines.index, styles_of(list(lines)), dashes, strict=True):
                line = frame[(frame.layer == number) & (frame.label == label)]
                kl = line.groupby("step").kl.agg(["mean", "min", "max"])
                name = f"{label}: {line.final.max():.3f}"
                axes.plot(kl["mean"], label=name, **style, markersize=3.5, linestyle=DASHES[i])
                axes.fill_between(kl.index, kl["min"], kl["max"], color=style["color"], alpha=0.15)
            axes.axhline(KL_WARNING, color="0.5", lw=0.8, ls=":")
            axes.set_title(f"layer {number}")
            axes.grid(which="both")
        panels[0, 0].set_yscale("log")
        finely_ticked(panels[0, 0].yaxis)
        explained, legend = panels[0, 0].get_legend_handles_labels(), "outside lower center"
        heads = "step of stage 1; mean KL at the end:"
        figure.legend(*explained, loc=legend, ncols=3, frameon=False, title=heads)
        figure.supylabel("KL(teacher || student), mean over rows", fontsize=9)

    seeds = "mean and range of the seeds" if len(records) > len(lines) else "one seed"
    title = f"{budget(records)}\n{seeds}; dotted: a conversion that ends above {KL_WARNING} warns"
    size = (WIDTH, 1.9 * rows_for(len(layers), columns) + 1.5)
    return save_figure(stem, fill, size=size, title=title)
