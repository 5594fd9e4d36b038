"""A table as frames of texts, and these as Markdown, LaTeX (booktabs, for `\\input`) and CSV."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd

from lra.base.config import csv_text
from lra.report.notes import compute_class
from lra.report.specs import published, published_table
from lra.report.table import LEAST_DEAD, Table, mark_of, one_line, pairs_of, text_of
from lra.results.record import STAGES

GENERATED = (
    "Made from the records of finished runs by `lra table --write`; `lra table --check` compares."
)
PAIRS = (
    "First minus second row in points of accuracy (on STS-B: minus 100 times the squared error), "
    "and p of a paired test, in which signs of the differences between dev examples, averaged over "
    "seeds, are drawn at random; Holm's correction in each column. *: p < 0.05."
)
EFFECTS = (
    "Mean difference in points of accuracy over pairs of rows that differ in this one setting (and "
    "in a rate chosen on dev, which each row has of its own); 95 % interval, Student's over pairs "
    "of rows or, of one or two, over their seeds, and not corrected for the number of lines; pairs "
    "of rows (of runs); the smallest and largest difference between two runs."
)
AGREEMENTS = (
    "Spearman's correlation of the ranks of methods here, by column, with those in {name}, and its "
    "95 % interval (Fisher's z) if methods were drawn at random; the spread of seeds is not in it."
)
RULES = (
    "What rules score on the test examples, fitted to the training examples (lra data baseline). A "
    "rule reads what its last column says and no more; it is no attention, and not ranked."
)
BESIDE = (
    "Measured / published, ordered by name. Published: {title}. These come from other protocols, "
    "budgets, data and sometimes models than the measured runs, so the two are not compared."
)
CSV_COLUMNS = ("table", "row", "attention", "options", "column", "score", "deviation", "seeds",
               "best", "worse", "p", "needs", "floor", "rule", "learned", "dead", "parameters",
               "gflops", "compute", "steps_per_second", "peak_memory_mib", "published", "source",
               "protocol", "budget", "steps", "batch", "data_source", "fingerprint", "revisions",
               "runs")  # fmt: skip
# Columns of what all runs of a cell share, with their facts.
CONDITIONS = {"protocol": "protocol", "budget": "budget", "steps": "steps", "batch": "batch",
              "data_source": "data.source"}  # fmt: skip
TEX = str.maketrans({
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "×": r"$\times$",
    "±": r"$\pm$", "∅": r"$\emptyset$", "↓": r"$\downarrow$", "–": "--",
    **{special: f"\\{special}" for special in "&%$#_{}"},
})  # fmt: skip


# ---------------------------------------------------------------------- frames of texts


def wide(table: Table, text_of: Callable[[pd.Series], str]) -> pd.DataFrame:
    """The table as texts, a line per row: its cells, then costs of one column, or summaries."""
    texts = table.cells.apply(text_of, axis=1).unstack("column")
    shown = texts.reindex(index=table.rows.index, columns=table.columns).fillna("")
    shown = shown.rename_axis("attention")
    if table.single:
        return shown.join(costs(table, table.single))
    for name in table.summaries:
        shown[name] = table.rows[name].map(lambda n: "–" if pd.isna(n) else f"{n:.1f}")
    return shown.assign(tasks=table.rows["coverage"]) if table.summaries else shown


def costs(table: Table, column: str) -> pd.DataFrame:
    """Dead queries, if there are any; parameters, FLOPs and class of compute; speed and memory, if
    all runs were timed on one machine."""
    cells = table.column(column)
    shown = pd.DataFrame(index=cells.index.rename("attention"))
    if (cells["dead"] >= LEAST_DEAD).any():
        shown["dead queries"] = cells["dead"].map(lambda d: "–" if pd.isna(d) else f"{d:.1f}%")
    shown["parameters"] = cells["parameters"].map("{:,.0f}".format)
    shown["GFLOPs"] = (cells["flops"] / 1e9).map("{:.3f}".format)
    shown["compute"] = [compute_class(record["compute"]) for record in cells["record"]]
    if column in table.timed:
        shown["steps/s"] = cells["steps_per_second"].map("{:.1f}".format)
        shown["peak MiB"] = cells["peak_memory_mib"].map("{:.0f}".format)
    return shown


def sections(table: Table) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Give what stands below a table, each with its title and text: cost of several columns,
    published numbers, effects, agreements and paired tests."""
    for column in table.columns if table.costs and not table.single else ():
        yield f"Cost on {column}", "", costs(table, column)
    if not table.rules.empty:
        yield "Rules", RULES, rules(table)
    if table.published and table.cells["published"].notna().any():
        yield "Beside the published numbers", *beside(table)
    if not table.effects.empty:
        yield "Effect of each setting", EFFECTS, effects(table)
    if not table.agreements.empty:
        name = table.agreements["other"].iloc[0]
        yield f"The order in {name}", AGREEMENTS.format(name=name), orders(table)
    if not table.pairs.empty:
        yield "Example by example", PAIRS, table.pairs


def beside(table: Table) -> tuple[str, pd.DataFrame]:
    """Set measured beside published numbers, `51.5 / 38.94`, in the order of names and not ranked,
    with the sources."""
    printed = published_table(str(table.published))
    cells, first = table.cells[table.cells["published"].notna()], table.summaries[0]
    pair = f"{{:.1f}} / {{:.{printed['digits']}f}}".format
    both = pd.Series(map(pair, cells["score"], cells["published"]), cells.index)
    wide = both.unstack("column").reindex(columns=table.columns)
    means = table.rows[[first, "published"]].dropna()
    if table.rows["published"].notna().any():
        wide[first] = pd.Series(map(pair, means[first], means["published"]), means.index, dtype=str)
    wide["published by"] = cells.groupby("row")["source"].agg(lambda s: ", ".join(dict.fromkeys(s)))
    explained = published()["sources"]
    sources = " ".join(f"{name}: {explained[name]}." for name in dict.fromkeys(cells["source"]))
    text = f"{BESIDE.format(title=printed['title'])} {sources}"
    return text, wide.sort_index().fillna("").rename_axis("attention")


def rules(table: Table) -> pd.DataFrame:
    """What each rule scores in each column, and what it reads."""
    ordered = table.rules.loc[table.rules[table.columns].mean(axis=1).sort_values().index]
    scores = ordered[table.columns].map(lambda n: "" if pd.isna(n) else f"{n:.1f}")
    return scores.assign(reads=ordered["reads"]).rename_axis("rule")


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
    parts.append(grid(_escaped(wide(table, _md_cell), table, escape_md)))
    parts.append("\n".join(f"* {escape_md(note)}" for note in table.notes))
    for title, text, body in sections(table):
        parts += [f"## {title}", escape_md(text), grid(body.map(escape_md))]
    parts += ["## Runs", grid(_runs(table, results))]
    return "\n\n".join(filter(None, parts)) + "\n"


def _md_cell(cell: pd.Series) -> str:
    return (f"**{text_of(cell)}**" if cell["best"] else text_of(cell)) + mark_of(cell)


def _escaped(shown: pd.DataFrame, table: Table, escape: Callable[[str], str]) -> pd.DataFrame:
    """Escape what is not a cell's own text."""
    return shown.assign(**{c: shown[c].map(escape) for c in shown if c not in table.columns})


def _runs(table: Table, results: Path) -> pd.DataFrame:
    """The runs of every cell, with the file of their records."""

    def described(runs: pd.DataFrame) -> dict[str, str]:
        first, place = runs.iloc[0], Path(runs["path"].iloc[0]).resolve()
        name = first["run"].rpartition("-seed-")[0]
        if place.is_relative_to(results.resolve()):
            name = f"[{name}](../{place.relative_to(results.resolve()).as_posix()})"
        scores = [r.get("scores") or {} for r in runs["record"]]
        stages = (" → ".join(f"{s} {100 * of[s]['score']:.1f}" for s in STAGES if s in of)
                  for of in scores)  # fmt: skip
        return {
            "run": name,
            "seeds": " ".join(runs["seed"].map(str)),
            "score": " ".join(runs["score"].map("{:.2f}".format)),
            **({} if table.costs else {"stages": "; ".join(stages)}),
            "data": first["fingerprint"] or "not recorded",
            "revision": " ".join(dict.fromkeys(runs["revision"])),
        }

    groups = table.runs.groupby(["row", "column"], sort=False)
    lines = [{"attention": row, "column": column} | described(runs)
             for (row, column), runs in groups]  # fmt: skip
    lines.sort(key=lambda line: table.rows.index.get_loc(line["attention"]))
    return pd.DataFrame(lines).set_index("attention")


def grid(frame: pd.DataFrame) -> str:
    """A Markdown table; cells may hold links and bold text, row names are escaped."""
    rows = [[escape_md(str(name)), *map(str, cells)]
            for name, *cells in frame.itertuples(name=None)]  # fmt: skip
    lines = [[frame.index.name, *frame.columns], ["---"] * (frame.shape[1] + 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape_md(text: str) -> str:
    return re.sub(r"([\\|*_`\[\]])", r"\\\1", one_line(text)).replace("<", "&lt;")


# ---------------------------------------------------------------------- LaTeX and CSV


def latex(table: Table, results: Path) -> str:
    """The table, with the runs of each row in comments."""
    comments = [f"{table.title}. {GENERATED.replace('`', '')}", table.caveat, *table.notes]
    comments += [f"{row}, {column}: {' '.join(names)}"
                 for (row, column), names in table.cells["runs"].items() if names]  # fmt: skip
    body = _escaped(wide(table, _tex_cell), table, escape_tex)
    body = body.rename(index=escape_tex, columns=escape_tex).reset_index()
    shape = "l" + "r" * (body.shape[1] - 1)
    text = body.to_latex(index=False, column_format=shape, escape=False)
    return "\n".join(f"% {one_line(comment)}" for comment in comments if comment) + "\n" + text


def _tex_cell(cell: pd.Series) -> str:
    mean = rf"\mathbf{{{cell['score']:.1f}}}" if cell["best"] else f"{cell['score']:.1f}"
    spread = "" if pd.isna(cell["deviation"]) else rf" \pm {cell['deviation']:.1f}"
    mark = {" ∅": r"^{\emptyset}", " ↓": r"^{\downarrow}"}.get(mark_of(cell), "")
    return f"${mean}{spread}{mark}$" + (f" ({cell['seeds']})" if cell["seeds"] else "")


def escape_tex(text: str) -> str:
    return one_line(str(text)).translate(TEX)


def to_csv(table: Table, results: Path) -> str:
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
        **({name: (fact, "first") for name, fact in CONDITIONS.items()} if table.costs else {}),
    )
    cells = cells.join(facts, on=["row", "column"]).assign(table=table.name)
    if table.costs:
        cells["gflops"] = cells["flops"] / 1e9
        cells["budget"] = cells["budget"].map("{:g}".format)
        cells["compute"] = [compute_class(record["compute"]) for record in cells["record"]]
        untimed = ~cells["column"].isin(table.timed)
        cells.loc[untimed, ["steps_per_second", "peak_memory_mib"]] = None
    cells = cells[[c for c in CSV_COLUMNS if c in cells]]
    whole = {c: "Int64" for c in ("seeds", "needs", "parameters") if c in cells}
    cells = cells.round({"parameters": 0}).astype(whole)
    for name in cells.select_dtypes(exclude=["number", "bool"]):
        values = [csv_text(v) if isinstance(v, str) else v for v in cells[name]]
        cells[name] = pd.Series(values, cells.index, dtype=cells[name].dtype)
    return cells.to_csv(index=False, float_format="%.4f", lineterminator="\n")


WRITERS = {"md": markdown, "csv": to_csv, "tex": latex}
