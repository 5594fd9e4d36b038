"""The results as one HTML page that loads nothing but its pictures: page.html is a Jinja2 template,
page.js what it does, static/ the table library DataTables."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from jinja2 import Environment, FileSystemLoader

from lra.report import notes, published, render
from lra.report.table import Table, beside, mark_of, text_of
from lra.report.training import FIVE

HERE = Path(__file__).parent
SCRIPTS = [HERE / "static" / "dataTables.min.js", HERE / "page.js"]
SHORT = ("demo", "quick")  # protocols with a small part of the benchmark's steps
VERDICTS = {"": "", " ↓": "shown to be worse", " ∅": "no better than one answer"}


class Cell(NamedTuple):
    text: str
    order: float | None = None  # what its column is sorted by, if not the text
    look: str = ""
    words: str = ""  # for a screen reader
    facts: str = ""  # for the tooltip, a line each


def page(tables: Sequence[Table], results: Path) -> str:
    """Render the page. Its policy admits the scripts by their hashes: no text of a record could run
    even if it were not escaped."""
    scripts = [path.read_text(encoding="utf-8") for path in SCRIPTS]
    runs = {r.run: r for table in tables for r in table.runs["record"]}.values()
    ours = [r for r in runs if r["task"] in FIVE and r.get("protocol.name") not in SHORT]
    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True)
    environment.globals.update(render=render, published=published, beside=beside, notes=notes)
    return environment.get_template("page.html").render(
        tables=[(table, dict(columns(table))) for table in tables],
        pictures={t.name: sorted((results / "figures").glob(f"{t.name}-*.png")) for t in tables},
        scripts=scripts,
        hashes=[base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts],
        runs=len(runs),
        full=sum(r.get("budget", 0) >= 1 for r in ours),
        gpu=sum(r.get("machine.kind", "cpu") != "cpu" for r in runs),
        last=max((r.finished for r in runs if r.finished), default=None),
    )


def columns(table: Table) -> Iterator[tuple[str, dict[str, Cell]]]:
    """Give every column but the first: its head and its cells by row."""
    runs = dict(iter(table.runs.groupby(["row", "column"], sort=False)))
    form = f"{{:.{published.digits(table.published) if table.published else 0}f}} {{}}".format
    for name in table.columns:
        cells = table.column(name)
        yield name, {r: _score(table, cell, runs.get((r, name))) for r, cell in cells.iterrows()}
        if table.published and len(printed := cells.dropna(subset=["published"])):
            values = printed[["published", "source"]].itertuples()
            yield f"{name}, published", {r: Cell(form(p, source), p) for r, p, source in values}
    for name, texts in render.wide(table, text_of).drop(columns=table.columns).items():
        yield name, {row: Cell(text.strip("–")) for row, text in texts.fillna("").items()}
        if name in table.summaries[:1] and len(printed := table.rows["published"].dropna()):
            yield f"{name}, published", {row: Cell(form(p, ""), p) for row, p in printed.items()}


def _score(table: Table, cell: pd.Series, runs: pd.DataFrame | None) -> Cell:
    text, verdict = text_of(cell), "best mean" if cell["best"] else VERDICTS[mark_of(cell)]
    if runs is None:  # the teacher of conversions
        return Cell(text, cell["score"])
    scores = map("seed {}: {:.2f}".format, runs["seed"], runs["score"])
    facts = [", ".join(scores), verdict]
    first, seeds = runs["record"].iloc[0], f"{len(runs)} seed" + "s" * (len(runs) > 1)
    if pd.notna(cell["p"]):
        n = "" if pd.isna(cell["needs"]) else f"; needs about {cell['needs']:.0f} seeds"
        n = n.replace("about 101", "more than 100")  # stats.MOST_SEEDS
        facts.append(f"compared with the best, p = {cell['p']:.2g}{n}")
    if table.costs:
        size, flops = f"{cell['parameters']:,.0f} parameters", f"{cell['flops'] / 1e9:.3f} GFLOPs"
        facts.append(f"{size}, {flops}, compute {notes.compute_class(first['compute'])}")
    facts.append(first.get("command") or "the command was not recorded")
    facts.append(f"revision {' '.join(runs['revision'].unique())}; runs {' '.join(cell['runs'])}")
    words = [text.split(" (")[0].replace("±", "plus minus"), seeds, verdict]
    look = "best" if cell["best"] else "worse" if verdict else ""
    spoken, shown = ", ".join(filter(None, words)), "\n".join(filter(None, facts))
    return Cell(text + mark_of(cell), cell["score"], look, spoken, shown)
