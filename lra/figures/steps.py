"""Loss, score on dev and rate of runs by step; of conversions, the KL divergence between teacher
and student in every layer while feature maps are fitted."""

from __future__ import annotations

import math
import re
from argparse import Namespace
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lra.base.errors import UserError
from lra.figures import style as look
from lra.figures.students import budget
from lra.looks import look_of
from lra.report.table import differing, short_name
from lra.results.frame import frame_of
from lra.results.record import Record, read_all
from lra.runs.folder import read_metrics
from lra.runs.schema import CONVERSION

PANELS = {"train_loss": "training loss", "dev_score": "score on dev", "lr": "rate"}
FACTS = ("task", "protocol.name", "model", "steps", "batch")
CONDITIONS = "{}, protocol {}, model {}, {:,} steps of {}"  # of a run, by these facts
RANGE = ["mean", "min", "max"]


def draw(arguments: Namespace) -> list[Path]:
    records = read_all(arguments.runs)
    fitted = [r for r in records if r.kind == CONVERSION and r.get("stage1.curve")]
    fitted = [r for r in fitted if r["stage1.curve"][0]["kl"]]  # not with a loss of the outputs
    if not fitted:
        return draw_training(records, arguments.out)
    groups = defaultdict[Any, list[Record]](list)
    for record in fitted:
        groups[record["task"], record["model"]].append(record)
    return [path for group in groups.values() for path in draw_kl(group, arguments.out)]


def draw_training(records: Sequence[Record], out: Path) -> list[Path]:
    """A panel per quantity, a line per attention with the range of its runs."""
    records = [r for r in records if r.path.with_name("metrics.csv").is_file()]
    conditions = {CONDITIONS.format(*(r[fact] for fact in FACTS)) for r in records}
    if len(conditions) != 1:
        raise UserError(f"give folders of finished runs of one setting, not of {len(conditions)}")
    rows = pd.DataFrame(
        {"attention": record.attention, **row}
        for record in records
        for row in read_metrics(record.path.with_name("metrics.csv"))
    )
    rows = rows.replace("", None).astype(dict.fromkeys(("step", *PANELS), float))
    names = [*dict.fromkeys(rows["attention"])]
    styles = look.dashed([look.style_of(name) | {"marker": ""} for name in names])

    def fill(figure: Any) -> None:
        panels = figure.subplots(len(PANELS), 1, sharex=True)
        for axes, (column, title) in zip(panels, PANELS.items(), strict=True):
            part = rows.dropna(subset=column).groupby(["attention", "step"])[column].agg(RANGE)
            axes.set_ylabel(title)
            lines = [part.loc[name] for name in names]
            drawn = [
                (look_of(name).name if style else "", line, style or {})
                for name, line, style in zip(names, lines, styles, strict=True)
            ]
            look.draw_lines(axes, drawn, gap=0.12)
        panels[-1].set_xlabel("step")

    seeds = len({record["seed"] for record in records})
    title = f"Loss, score on dev and rate by step\n{conditions.pop()}, {seeds} seed(s)"
    stem = out / f"steps-{records[0]['task']}-{'-'.join(names)}"
    return look.save_figure(stem, fill, title, 6.0)


def kl_by_step(records: Sequence[Record]) -> pd.DataFrame:
    """A row per record, layer and step. A label names the settings in which runs of one method
    differ, so that those of one label differ in the seed only."""
    runs, rows = frame_of(records).assign(column=""), []
    settings = sorted(name for name in runs if name.startswith(("attention.", "recipe.")))
    for method, of_method in runs.groupby("attention", sort=False):
        differ = of_method[differing(of_method, settings)].rename(columns=short_name)
        for record, options in zip(of_method["record"], differ.to_dict("records"), strict=True):
            shown = {k: v for k, v in options.items() if v is not None}
            label = look_of(method, shown or None).name
            rows += [
                (method, label, int(re.findall(r"/(\d+)/", layer)[0]), point["step"], kl)
                for point in record["stage1.curve"]
                for layer, kl in point["kl"].items()
            ]
    return pd.DataFrame(rows, columns=["method", "label", "layer", "step", "kl"])


def draw_kl(records: Sequence[Record], out: Path) -> list[Path]:
    """One panel per layer, all on one scale, a line per label with the range of its seeds."""
    from luna.convert.stage1 import KL_WARNING

    frame = kl_by_step(records)
    methods = frame.groupby("label", sort=False)["method"].first()
    dashed = look.dashed([look.style_of(method) for method in methods])
    styles = [(style or {"color": look.OTHERS}) | {"markersize": 3.5} for style in dashed]
    layers, columns = sorted(frame["layer"].unique()), 3

    def fill(figure: Any) -> None:
        panels = look.panels_for(figure, len(layers), columns, sharex=True, sharey=True)
        for axes, layer in zip(panels.flat, layers, strict=False):
            lines = frame[frame["layer"] == layer].groupby(["label", "step"])["kl"].agg(RANGE)
            for label, style in zip(methods.index, styles, strict=True):
                kl = lines.loc[label]
                axes.plot(kl["mean"], label=label, **style)
                axes.fill_between(kl.index, kl["min"], kl["max"], color=style["color"], alpha=0.15)
            axes.axhline(KL_WARNING, color="0.5", lw=0.8, ls=":")
            axes.set_title(f"layer {layer}")
            axes.grid(which="both")
        panels[0, 0].set_yscale("log")
        look.ticked(panels[0, 0].yaxis)
        named = panels[0, 0].get_legend_handles_labels()
        figure.legend(*named, loc="outside lower center", frameon=False, title="step of stage 1")
        figure.supylabel("KL(teacher || student), mean over rows", fontsize=9)

    title = f"{budget(records[0])}\ndotted: a conversion that ends above {KL_WARNING} warns"
    height = 1.9 * math.ceil(len(layers) / columns) + 1.2 + 0.17 * len(methods)
    stem = out / f"conversion-distillation-{records[0]['task']}"
    return look.save_figure(stem, fill, title, height)
