"""The results as one page: a template, its script, and in static/ the table library DataTables."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader

from lra.report.notes import FLOOR
from lra.report.render import sections, wide
from lra.report.stats import MOST_SEEDS
from lra.report.table import Table, mark_of, rounded, text_of
from lra.report.trainings import FIVE

HERE = Path(__file__).parent
SCRIPTS = ("static/dataTables.min.js", "page.js")
SHORT = ("demo", "quick", "balanced")  # protocols with a small part of the benchmark's steps
VERDICTS = {
    "": ("", ""),
    "↓": ("worse", "shown to be worse"),
    "∅": ("worse", "no better than a simple rule"),
}


def page(tables: Sequence[Table], results: Path) -> str:
    """Render the page. Its policy admits the scripts by their hashes: no text of a record could run
    even if it were not escaped."""
    scripts = [(HERE / name).read_text(encoding="utf-8") for name in SCRIPTS]
    runs = {r.run: r for table in tables for r in table.runs["record"]}.values()
    ours = [r for r in runs if r["task"] in FIVE and r.get("protocol.name") not in SHORT]
    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True)
    return environment.get_template("page.html").render(
        {"sections": sections, "floor": FLOOR, "unit_of": unit_of},
        tables=[(table, _body(table)) for table in tables],
        pictures={
            t.spec.name: sorted((results / "figures").glob(f"{t.spec.name}-*.png")) for t in tables
        },
        scripts={b64encode(sha256(s.encode()).digest()).decode(): s for s in scripts},
        runs=len(runs),
        full=sum(r.get("steps_share", 0) >= 1 for r in ours),
        gpu=sum(r.get("machine.kind", "cpu") != "cpu" for r in runs),
        last=max((r.finished for r in runs if r.finished), default=None),
    )


def unit_of(table: Table, column: str) -> str:
    """The unit of the scores of a column; of recoveries and averages percent."""
    units = table.cells["unit"].dropna().groupby("column").first()
    return str(units.get(column, "%"))


def _body(table: Table) -> pd.DataFrame:
    """The table as texts; its scores as what `_score` says of them."""
    body = wide(table).apply(lambda column: column.str.strip("–")).astype(object)
    for (row, column), cell in table.cells.iterrows():
        body.at[row, column] = _score(table, cell)
    return body


def _score(table: Table, cell: pd.Series) -> dict[str, Any]:
    """Give text, number to sort by, look, words for a screen reader and lines of the tooltip."""
    shown = {"text": f"{text_of(cell)} {mark_of(cell)}".strip(), "order": round(cell["score"], 4)}
    if not cell["runs"]:  # the teacher of conversions
        return shown
    look, verdict = ("best", "best mean") if cell["best"] else VERDICTS[mark_of(cell)]
    digits = cell["digits"] + 1
    scores = (
        f"seed {seed}: {rounded(score, digits)}"
        for seed, score in zip(cell["seed"], cell["values"], strict=True)
    )
    facts, first = [", ".join(scores), verdict], cell["record"]
    if pd.notna(cell["p"]):
        facts.append(f"p = {cell['p']:.2g} against the best")
    if (n := cell["needs"]) > 0:
        facts.append(f"needs {'more than 100' if n > MOST_SEEDS else f'about {n:.0f}'} seeds")
    if table.costs:
        facts.append(f"{cell['parameters']:,.0f} parameters, {cell['compute']}")
    facts += [first.get("command") or "the command was not recorded"]
    facts.append(f"revision {cell['revisions']}; runs {' '.join(cell['runs'])}")
    end = f" seed{'s' * (cell['seeds'] > 1)}, {verdict}"
    words = text_of(cell).replace("±", "plus minus").replace(" (", ", ").replace(")", end)
    shown |= {"look": look, "words": words.strip(", ")}
    return shown | {"facts": "\n".join(filter(None, facts))}
