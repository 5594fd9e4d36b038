"""Stage 1 of conversions, layer by layer: the KL divergence between the attention of teacher
and student while feature maps are fitted."""

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
from lra.results.record import CONVERSION, Record, read_all

if TYPE_CHECKING:
    from pandas import DataFrame

NUMBERS = ("stage1", "stage1_lr", "stage1_steps", "max_length", "batch", "train_examples")


def draw(arguments: Namespace) -> list[Path]:
    records = read_conversions(arguments.runs)
    methods = "-".join(dict.fromkeys(record.attention for record in records))
    return draw_distillation(records, arguments.out / f"distillation-{methods}")


def read_conversions(places: Sequence[Path]) -> list[Record]:
    """The conversions in files or folders whose stage 1 measured a KL."""
    runs = [r for r in read_all(places) if r.kind == CONVERSION and r["stage1"]]
    measured = [record for record in runs if record["stage1"]["curve"][0]["kl"]]
    if not measured:
        raise UserError(
            f"{places[0]} holds no finished conversion whose stage 1 measured a KL: give folders "
            "of lra convert or their records (result.json)"
        )
    return measured


def curves(records: Sequence[Record]) -> DataFrame:
    """A row per record, layer and step. Records of one label differ in the seed only; `final` is
    the KL of a label at its last step, mean over layers and seeds."""
    import pandas as pd

    settings = [{"task": r["task"], "model": r["model"]}
                | {k: v for k, v in r["attention"].items() if k != "name"}
                | {k: v for k, v in r["settings.recipe"].items() if k in NUMBERS}
                for r in records]  # fmt: skip
    labels = labels_of([r.attention for r in records], settings)
    rows = [
        (
            number,
            record.attention,
            label,
            int(re.findall(r"\.(\d+)\.", layer)[0]),
            point["step"],
            kl,
        )
        for number, (record, label) in enumerate(zip(records, labels, strict=True))
        for point in record["stage1"]["curve"]
        for layer, kl in point["kl"].items()
    ]
    frame = pd.DataFrame(rows, columns=["record", "method", "label", "layer", "step", "kl"])
    ends = frame.sort_values("step").groupby(["label", "record", "layer"]).kl.last()
    return frame.assign(final=frame.label.map(ends.groupby("label").mean()))


def draw_distillation(records: Sequence[Record], stem: Path) -> list[Path]:
    """One panel per layer, all on one scale."""
    from luna.convert.fit import KL_WARNING

    frame = curves(records)
    lines = frame.groupby("label", sort=False).method.first()
    repeated = lines.groupby(lines).cumcount() % len(DASHES)  # lines of one method differ in dashes
    styles = [style | {"linestyle": DASHES[i], "markersize": 3.5}
              for style, i in zip(styles_of(list(lines)), repeated, strict=True)]  # fmt: skip
    layers = sorted(frame.layer.unique())
    columns = min(len(layers), 3)

    def fill(figure: Any) -> None:
        panels = panels_for(figure, len(layers), columns, sharex=True, sharey=True)
        for axes, number in zip(panels.flat, layers, strict=False):
            for label, style in zip(lines.index, styles, strict=True):
                line = frame[(frame.layer == number) & (frame.label == label)]
                kl = line.groupby("step").kl.agg(["mean", "min", "max"])
                axes.plot(kl["mean"], label=f"{label}: {line.final.max():.3f}", **style)
                axes.fill_between(kl.index, kl["min"], kl["max"], color=style["color"], alpha=0.15)
            axes.axhline(KL_WARNING, color="0.5", lw=0.8, ls=":")
            axes.set_title(f"layer {number}")
            axes.grid(which="both")
        panels[0, 0].set_yscale("log")
        finely_ticked(panels[0, 0].yaxis)
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center",
                      ncols=3, frameon=False,
                      title="step of stage 1; mean KL at the end:")  # fmt: skip
        figure.supylabel("KL(teacher || student), mean over rows", fontsize=9)

    seeds = "mean and range of the seeds" if len(records) > len(lines) else "one seed"
    title = f"{budget(records)}\n{seeds}; dotted: a conversion that ends above {KL_WARNING} warns"
    size = (WIDTH, 1.9 * rows_for(len(layers), columns) + 1.5)
    return save_figure(stem, fill, size=size, title=title)
