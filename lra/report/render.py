"""A table as Markdown, CSV, LaTeX (booktabs, one file per tabular, for `\\input`) and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from lra.base.config import csv_text
from lra.report import published
from lra.report.notes import compute_class
from lra.report.table import Table, beside, mark_of, one_line, pairs_of, text_of
from lra.results.record import STAGES, Record

GENERATED = (
    "Made from the records of finished runs by `lra table --write`; `lra table --check` compares."
)
PAIRS = (
    "Score of the first row minus score of the second, in points of accuracy (on STS-B: minus 100 "
    "times the squared error), and the p-value of a paired test: signs of the differences between "
    "dev examples, averaged over seeds, are drawn at random; Holm's correction in each column. "
    "*: p < 0.05."
)
EFFECTS = (
    "Mean difference in points of accuracy over pairs of rows that differ in this one setting and "
    "share every other (but for a rate chosen on dev, which each row has of its own); its 95 % "
    "interval; the number of pairs of rows and of runs; the smallest and the largest difference "
    "between two runs. The interval is Student's over the pairs of rows, each the mean of its "
    "seeds, so an effect that depends on other settings widens it; for one or two pairs it is over "
    "their seeds and says nothing of other settings. It is not corrected for the number of lines."
)
AGREEMENTS = (
    "Spearman's correlation of the ranks that methods have here, by column, with those that they "
    "have in [{name}]({name}.md): 1 is the same order, 0 none. The 95 % interval (Fisher's z) is "
    "that of methods drawn at random; the spread of seeds is not in it."
)
BESIDE = (
    "Measured / published, ordered by name. Published: {title}. These come from other protocols, "
    "budgets, data and sometimes models than the measured runs, so the two are not compared."
)
CSV_COLUMNS = ("row", "attention", "options", "column", "score", "deviation", "seeds", "best",
               "worse", "p", "needs", "floor", "learned", "dead", "parameters", "gflops", "compute",
               "steps_per_second", "peak_memory_mib", "published", "source", "data_source",
               "fingerprint", "revisions", "runs")  # fmt: skip
TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
       "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "×": r"$\times$",
       "±": r"$\pm$", "∅": r"$\emptyset$", "↓": r"$\downarrow$", "–": "--"}  # fmt: skip


# ---------------------------------------------------------------------- parts of every format


def wide(table: Table, text_of: Callable[[pd.Series], str]) -> pd.DataFrame:
    """The table as texts, a line per row: its cells, then costs of one column, or summaries."""
    texts = table.cells.apply(text_of, axis=1).unstack("column")
    shown = texts.reindex(index=table.rows.index, columns=table.columns).fillna("")
    if table.single:
        return shown.join(costs(table, table.single))
    for name in table.summaries:
        shown[name] = table.rows[name].map(lambda n: "–" if pd.isna(n) else f"{n:.1f}")
    return shown.assign(tasks=table.rows["coverage"])


def escaped(shown: pd.DataFrame, table: Table, escape: Callable[[str], str]) -> pd.DataFrame:
    """Escape what is not a cell's own text."""
    others = [c for c in shown if c not in table.columns]
    return shown.assign(**{c: shown[c].map(escape) for c in others})


def costs(table: Table, column: str) -> pd.DataFrame:
    """Dead queries, if there are any; parameters, FLOPs and class of compute; speed and memory, if
    all runs were timed on one machine."""
    cells = table.column(column)
    shown = pd.DataFrame(index=cells.index)
    if table.dead(column):
        shown["dead queries"] = cells["dead"].map(lambda d: "–" if pd.isna(d) else f"{d:.1f}%")
    shown["parameters"] = cells["parameters"].map("{:,.0f}".format)
    shown["GFLOPs"] = (cells["flops"] / 1e9).map("{:.3f}".format)
    shown["compute"] = [compute_class(record["compute"]) for record in cells["record"]]
    if column in table.timed:
        shown["steps/s"] = cells["steps_per_second"].map("{:.1f}".format)
        shown["peak MiB"] = cells["peak_memory_mib"].map("{:.0f}".format)
    return shown


def effects(table: Table) -> pd.DataFrame:
    """The lines of the effects as texts: `positions: rope against none`, and its numbers."""
    lines = [
        {
            "setting": f"{e['setting']}: {e['level']} against {e['base']}",
            "difference": f"{e['mean']:+.1f}",
            "95 % interval": interval(e["mean"] - e["half_width"], e["mean"] + e["half_width"], 1),
            "pairs (runs)": f"{len(e['cells'])} ({len(e['differences'])})",
            "range": f"{e['differences'][0]:+.1f} to {e['differences'][-1]:+.1f}",
        }
        for e in table.effects.to_dict("records")
    ]
    return pd.DataFrame(lines).set_index("setting")


def orders(table: Table) -> pd.DataFrame:
    lines = [
        {"column": a["column"], "with": a["with"], "methods": str(len(a["methods"])),
         "correlation": f"{a['correlation']:+.2f}",
         "95 % interval": interval(a["low"], a["high"], 2)}
        for a in table.agreements.to_dict("records")
    ]  # fmt: skip
    return pd.DataFrame(lines).set_index("column")


def interval(low: float, high: float, digits: int) -> str:
    return "–" if pd.isna(low) else f"{low:+.{digits}f} to {high:+.{digits}f}"


# ---------------------------------------------------------------------- Markdown


def markdown(table: Table, results: Path) -> str:
    parts = [f"# {escape_md(table.title)}", GENERATED]
    parts += [f"**{escape_md(table.caveat)}**"] if table.caveat else []
    parts.append(grid(escaped(wide(table, _md_cell), table, escape_md), "attention"))
    parts.append("\n".join(f"* {escape_md(note)}" for note in table.notes))
    if table.costs and not table.single:
        for column in table.columns:
            cost = costs(table, column).map(escape_md)
            parts += [f"## Cost on {column}", grid(cost, "attention")]
    if comparison := beside(table):
        measured, sources = comparison
        parts += ["## Beside the published numbers", escape_md(_beside(table))]
        parts += [grid(measured, "attention"), "\n".join(f"* {source}." for source in sources)]
    if not table.effects.empty:
        parts += ["## Effect of each setting", EFFECTS, grid(effects(table), "setting")]
    if not table.agreements.empty:
        name = table.agreements["other"].iloc[0]
        parts += [f"## The order in {name}", AGREEMENTS.format(name=name)]
        parts.append(grid(orders(table), "column"))
    if not table.pairs.empty:
        pairs = table.pairs.assign(second=table.pairs["second"].map(escape_md))
        parts += ["## Example by example", escape_md(PAIRS), grid(pairs, "first")]
    return "\n\n".join([*parts, "## Runs", grid(_runs(table, results), "attention")]) + "\n"


def _md_cell(cell: pd.Series) -> str:
    return (f"**{text_of(cell)}**" if cell["best"] else text_of(cell)) + mark_of(cell)


def _beside(table: Table) -> str:
    return BESIDE.format(title=published.table(table.published or "")["title"])


def _runs(table: Table, results: Path) -> pd.DataFrame:
    """The runs of every cell, with the file of their records."""
    lines = []
    for (row, column), runs in table.runs.groupby(["row", "column"], sort=False):
        first, place = runs.iloc[0], Path(runs["path"].iloc[0]).resolve()
        name = first["run"].rpartition("-seed-")[0]
        if place.is_relative_to(results.resolve()):
            name = f"[{name}](../{place.relative_to(results.resolve()).as_posix()})"
        lines.append({
            "attention": row,
            "column": column,
            "run": name,
            "seeds": " ".join(runs["seed"].map(str)),
            "score": " ".join(runs["score"].map("{:.2f}".format)),
            **({} if table.costs else {"stages": "; ".join(map(stages, runs["record"]))}),
            "data": first["fingerprint"] or "not recorded",
            "revision": " ".join(dict.fromkeys(runs["revision"])),
        })  # fmt: skip
    lines.sort(key=lambda line: table.rows.index.get_loc(line["attention"]))
    return pd.DataFrame(lines).set_index("attention")


def stages(record: Record) -> str:
    """The scores of a conversion, stage by stage."""
    scores = record.get("scores") or {}
    return " → ".join(f"{s} {100 * scores[s]['score']:.1f}" for s in STAGES if s in scores)


def grid(frame: pd.DataFrame, index: str) -> str:
    """A Markdown table; cells may hold links and bold text, row names are escaped."""
    rows = [[escape_md(str(name)), *map(str, cells)]
            for name, *cells in frame.itertuples(name=None)]  # fmt: skip
    lines = [[index, *frame.columns], ["---"] * (frame.shape[1] + 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape_md(text: str) -> str:
    return re.sub(r"([\\|*_`\[\]])", r"\\\1", one_line(text)).replace("<", "&lt;")


# ---------------------------------------------------------------------- CSV and JSON


def numbers(table: Table) -> pd.DataFrame:
    """A line per cell, with everything that is shown of it."""
    places = {name: i for i, name in enumerate([*table.rows.index, *table.columns])}
    cells = table.cells.reset_index().sort_values(["row", "column"], key=lambda s: s.map(places))
    rows = table.rows.loc[cells["row"]]
    cells["attention"] = rows["attention"].to_numpy()
    cells["options"] = rows["options"].map(pairs_of).to_numpy()
    cells["runs"] = cells["runs"].map(" ".join)
    groups = table.runs.groupby(["row", "column"], sort=False)
    facts = groups.agg(
        fingerprint=("fingerprint", "first"),
        revisions=("revision", lambda r: " ".join(dict.fromkeys(r))),
        **({"data_source": ("data.source", "first")} if table.costs else {}),
    )
    cells = cells.join(facts, on=["row", "column"])
    if table.costs:
        cells["gflops"] = cells["flops"] / 1e9
        cells["compute"] = [compute_class(record["compute"]) for record in cells["record"]]
        untimed = ~cells["column"].isin(table.timed)
        cells.loc[untimed, ["steps_per_second", "peak_memory_mib"]] = None
    return cells[[c for c in CSV_COLUMNS if c in cells]]


def to_csv(table: Table, results: Path) -> str:
    cells = numbers(table).assign(table=table.name)
    whole = {c: "Int64" for c in ("seeds", "needs", "parameters") if c in cells}
    cells = cells[["table", *cells.columns.drop("table")]].round({"parameters": 0}).astype(whole)
    for name in cells.select_dtypes(exclude=["number", "bool"]):
        values = [csv_text(v) if isinstance(v, str) else v for v in cells[name]]
        cells[name] = pd.Series(values, cells.index, dtype=cells[name].dtype)
    return cells.to_csv(index=False, float_format="%.4f", lineterminator="\n")


def to_json(table: Table) -> dict[str, Any]:
    """The table for programs: rows with their summaries, a line per cell, effects."""
    rows = table.rows.drop(columns=["options"]).reset_index(names="row")
    frames = {"rows": rows, "cells": numbers(table), "effects": table.effects}
    head = {"table": table.name, "title": table.title, "conditions": table.conditions}
    lines = {key: json.loads(frame.to_json(orient="records", double_precision=15))
             for key, frame in frames.items()}  # fmt: skip
    return {**head, "columns": table.columns, **lines, "notes": table.notes}


# ---------------------------------------------------------------------- LaTeX


def latex(table: Table, results: Path) -> str:
    """The table, with the runs of each row in comments."""
    comments = [*filter(None, [table.caveat]), *table.notes]
    comments += [f"{row}, {column}: {' '.join(names)}"
                 for (row, column), names in table.cells["runs"].items() if names]  # fmt: skip
    return tabular(table.title, comments, escaped(wide(table, _tex_cell), table, escape_tex))


def latex_cost(table: Table, results: Path) -> str:
    """The cost of runs, column by column; empty with one, whose costs are in the table itself."""
    if table.single or not table.costs:
        return ""
    parts = pd.concat({column: costs(table, column) for column in table.columns}, names=["column"])
    parts = parts.fillna("").reset_index("column").map(escape_tex)
    return tabular(f"{table.title}: cost", table.notes, parts)


def latex_published(table: Table, results: Path) -> str:
    if (comparison := beside(table)) is None:
        return ""
    measured, sources = comparison
    title = f"{table.title}: beside the published numbers"
    return tabular(title, [_beside(table), *sources], measured.map(escape_tex))


def tabular(title: str, comments: Iterable[str], body: pd.DataFrame) -> str:
    above = [f"{title}. {GENERATED.replace('`', '')}", *comments]
    body = body.rename(index=escape_tex, columns=escape_tex)
    body.index.name, body.columns.name = "attention", None
    table = body.reset_index().to_latex(
        index=False, column_format="l" + "r" * body.shape[1], escape=False
    )
    return "\n".join(f"% {one_line(comment)}" for comment in above) + "\n" + table


def _tex_cell(cell: pd.Series) -> str:
    mean = rf"\mathbf{{{cell['score']:.1f}}}" if cell["best"] else f"{cell['score']:.1f}"
    spread = "" if pd.isna(cell["deviation"]) else rf" \pm {cell['deviation']:.1f}"
    mark = {" ∅": r"^{\emptyset}", " ↓": r"^{\downarrow}"}.get(mark_of(cell), "")
    return f"${mean}{spread}{mark}$" + (f" ({cell['seeds']})" if cell["seeds"] else "")


def escape_tex(text: str) -> str:
    special = r"[\\&%$#_{}~^<>|×±∅↓–]"
    return re.sub(special, lambda m: TEX.get(m[0], "\\" + m[0]), one_line(str(text)))


WRITERS: dict[str, Callable[[Table, Path], str]] = {
    "md": markdown,
    "csv": to_csv,
    "tex": latex,
    "cost.tex": latex_cost,
    "published.tex": latex_published,
}
