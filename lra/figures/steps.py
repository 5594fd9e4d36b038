"""Loss, dev accuracy and rate of runs by step."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pandas as pd

from lra.base.config import UserError
from lra.figures.style import draw_lines, save_figure, styles_of
from lra.results.record import read_all
from lra.runs.folder import read_metrics

PANELS = {"train_loss": "training loss", "dev_accuracy": "dev accuracy", "lr": "rate"}
FACTS = ("task", "protocol.name", "model", "steps", "batch")


def draw(arguments: Namespace) -> list[Path]:
    """A panel per quantity, a line per attention with the range of its runs."""
    records = [r for r in read_all(arguments.runs) if r.path.with_name("metrics.csv").is_file()]
    facts = {"{}, protocol {}, model {}, {:,} steps of {}".format(*(r[fact] for fact in FACTS))
             for r in records}  # fmt: skip
    if len(facts) != 1:
        raise UserError(f"give folders of finished runs of one setting, not of {len(facts)}")
    rows = pd.DataFrame({"attention": record.attention, **row} for record in records
                        for row in read_metrics(record.path.with_name("metrics.csv")))  # fmt: skip
    rows = rows.replace("", None).astype(dict.fromkeys(("step", *PANELS), float))
    names = [*dict.fromkeys(rows["attention"])]

    def fill(figure: Any) -> None:
        panels = figure.subplots(len(PANELS), 1, sharex=True)
        for axes, (column, title) in zip(panels, PANELS.items(), strict=True):
            part = rows.dropna(subset=column).groupby(["attention", "step"])[column]
            lines = part.agg(["mean", "min", "max"])
            axes.set_ylabel(title)
            draw_lines(axes, [(name, lines.loc[name], style | {"marker": ""})
                              for name, style in zip(names, styles_of(names), strict=True)],
                       gap=0.12)  # fmt: skip
        panels[-1].set_xlabel("step")

    seeds = len({record["seed"] for record in records})
    title = f"Loss, dev accuracy and rate by step\n{facts.pop()}, {seeds} seed(s)"
    stem = arguments.out / f"steps-{records[0]['task']}-{'-'.join(names)}"
    return save_figure(stem, fill, title, 6.0)
