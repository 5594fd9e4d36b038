"""How accurate a table's rows are where more and more must be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from lra.figures import style as look
from lra.looks import look_of
from lra.report.rungs import EXAMPLES, LAST, RULE
from lra.report.table import Table

MOST = 4  # rows, the best and the worst among them, so that each can be named


def write_rungs(table: Table, folder: Path) -> list[Path]:
    title = table.spec.findings.get("rungs", "By what must be read of an example, at least")
    stem = folder / f"{table.spec.name}-rungs"
    about = "Dotted: rules that read nothing, or a few tokens."
    return look.save_figure(
        stem, lambda figure: draw_rungs(figure, table), f"{title}\n{table.spec.title}. {about}", 3.4
    )


def draw_rungs(figure: Any, table: Table) -> None:
    axes, lines = figure.subplots(), []
    shown = table.rungs.drop(index=EXAMPLES)
    rules = [row for row in shown.index if row.startswith(RULE)]
    for row in [*_chosen([r for r in table.rows.index if r in shown.index]), *rules]:
        line = pd.DataFrame(dict.fromkeys(("mean", "min", "max"), shown.loc[row].to_numpy()))
        if row in rules:
            lines.append((row, line, {"color": look.NOTE, "ls": ":", "lw": 1}))
            continue
        method, options = table.rows.loc[row, "attention"], table.rows.loc[row, "options"]
        style = look.style_of(method, options)
        lines.append((look_of(method, options).name, line, style))
    counts = table.rungs.loc[EXAMPLES]
    names = [f"{name}\n{n:,.0f}" for name, n in counts.items()]
    by = "place" if LAST in shown else "what must be read"
    axes.set(xlabel=f"{by}; test examples", ylabel="accuracy, %", ylim=(0, 102))
    axes.set_xticks(range(len(names)), names)
    look.draw_lines(axes, lines, gap=0.085)


def _chosen(rows: list[str]) -> list[str]:
    """The rows from the best to the worst, evenly, where there are many."""
    if len(rows) <= MOST:
        return rows
    return [rows[i * (len(rows) - 1) // (MOST - 1)] for i in range(MOST)]
