"""A table as frames of texts, and these as Markdown and CSV."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pandas as pd

from lra.base.errors import csv_text, escape_md
from lra.report import rungs
from lra.report.cell import CSV, Cell, all_of, each, rounded
from lra.report.rows import beside
from lra.report.stats import LEVEL
from lra.report.table import (
    LEAST_DEAD,
    Table,
    pairs_of,
)
from lra.results.record import Record

PAIRS = (
    "First minus second row in points of accuracy (on STS-B: minus 100 times the squared error), "
    "and p of a paired test, in which signs of the differences between dev examples, averaged over "
    "seeds, are drawn at random; Holm's correction in each column. *: p < 0.05."
)
EFFECTS = (
    "Mean difference in points of accuracy over pairs of rows that differ in this one setting "
    "(and in a rate chosen on dev, which each row has of its own). Methods are never averaged "
    "with each other, nor are two pairs alone: each has a line. Attentions are compared without "
    "self-pretraining where there are such runs. 95 % interval: Student's over "
    "three or more pairs of rows, or over the seeds of one pair, and not corrected for the number "
    "of lines; pairs of rows (of runs); the smallest and largest difference between two runs."
)
AGREEMENTS = (
    "Spearman's correlation of the ranks of methods here, by column, with those in {name}, and its "
    "95 % interval (Fisher's z) if methods were drawn at random; the spread of seeds is not in it."
)
STAGES = ("teacher", "swap", "stage1", "best", "last")  # of a conversion, in order
# Columns of effects and agreements, whose numbers effects.py has.
EFFECT = {
    "setting": "{setting}: {level} against {base}",
    "where": "{where}",
    "difference": "{mean:+.1f}",
    "95 % interval": "{low:+.1f} to {high:+.1f}",
    "pairs (runs)": "{pairs} ({runs})",
    "range": "{least:+.1f} to {largest:+.1f}",
}
AGREEMENT = {
    "column": "{column}",
    "with": "{with}",
    "methods": "{methods}",
    "correlation": "{correlation:+.2f}",
    "95 % interval": "{low:+.2f} to {high:+.2f}",
}
RULES = (
    "What rules score on the test examples, fitted to the training examples (lra data baseline). A "
    "rule reads what its last column says and no more; it is no attention, and not ranked."
)


# ---------------------------------------------------------------------- frames of texts


def wide(table: Table, escape: Callable[[str], str] = str, bold: str = "{}") -> pd.DataFrame:
    """The table as texts of a language, a line per row: its cells, of which the best are bold, then
    costs of one column, or summaries."""

    def text(cell: Cell) -> str:
        score, mark = escape(cell.text), cell.mark
        return (bold.format(score) if cell.best else score) + " " * len(mark) + escape(mark)

    texts = [text(cell) for cell in each(table.cells)]
    shown = pd.Series(texts, table.cells.index).unstack("column")
    shown = shown.reindex(index=table.rows.index, columns=table.columns).astype(object).fillna("")
    shown = shown.rename_axis("attention")
    if table.single:
        return shown.join(costs(table, table.single).map(escape))
    for name in table.summaries:
        shown[name] = [escape("–" if pd.isna(n) else f"{n:.1f}") for n in table.rows[name]]
    return shown.assign(tasks=table.rows["coverage"]) if table.summaries else shown


def costs(table: Table, column: str) -> pd.DataFrame:
    """What each row costs; speed and memory, if all runs were timed on one machine."""
    cells = table.column(column)
    shown = pd.DataFrame(index=cells.index.rename("attention"))
    if (cells["dead"] >= LEAST_DEAD).any():
        shown["dead queries"] = cells["dead"].map(lambda d: "–" if pd.isna(d) else f"{d:.1f}%")
    shown["parameters"] = cells["parameters"].map("{:,.0f}".format)
    shown["GFLOPs"] = cells["gflops"].map("{:.3f}".format)
    if cells["state"].notna().any():
        shown["state"] = cells["state"].map(spelt_state)
    shown["compute"] = cells["compute"]
    if cells["tuning"].any():
        shown["tuning"] = cells["tuning"].map(lambda text: text or "–")
    if cells["steps_per_second"].notna().all():
        shown["steps/s"] = cells["steps_per_second"].map("{:.1f}".format)
        shown["peak MiB"] = cells["peak_memory_mib"].map("{:.0f}".format)
    return shown


def spelt_state(size: float | str | None) -> str:
    """What a head keeps between tokens: none without a causal form, or of older records."""
    return "–" if pd.isna(size) else size if isinstance(size, str) else f"{size:,.0f}"


def sections(table: Table) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Give what stands below a table, each with its title and text."""
    for column in table.columns if table.costs and not table.single else ():
        yield f"Cost on {column}", "", costs(table, column)
    if not table.rules.empty:
        yield "Rules", RULES, rules_of(table)
    if not table.rungs.empty:
        title = "By place" if rungs.LAST in table.rungs else "By what must be read"
        yield title, rungs.note_of(table.rungs), rungs.in_words(table.rungs)
    if table.spec.published and table.cells["published"].notna().any():
        yield "Beside the published numbers", *beside(table)
    if not table.effects.empty:
        yield "Effect of each setting", EFFECTS, lines_of(table.effects, EFFECT)
    if not table.agreements.empty:
        name, lines = table.spec.against, lines_of(table.agreements, AGREEMENT)
        yield f"The order in {name}", AGREEMENTS.format(name=name), lines
    if not table.pairs.empty:
        yield "Example by example", PAIRS, tests_of(table)


def rules_of(table: Table) -> pd.DataFrame:
    """The scores of rules as texts, the best last, and what each reads."""
    ordered = table.rules.loc[table.rules[table.columns].mean(axis=1).sort_values().index]
    digits = table.cells.groupby("column")["digits"].first()
    scores = ordered[table.columns].apply(
        lambda column: ["" if pd.isna(n) else rounded(n, digits[column.name]) for n in column]
    )
    return scores.assign(reads=ordered["reads"]).rename_axis("rule")


def tests_of(table: Table) -> pd.DataFrame:
    """The paired tests as texts, a line per pair of rows."""
    stars = table.pairs["p"].lt(LEVEL).map({True: "*", False: ""})
    texts = table.pairs.agg("{0[difference]:+.1f} (p {0[p]:.2g})".format, axis="columns")
    shown = table.pairs.assign(text=texts + stars)
    lines = shown.pivot(index=["first", "second"], columns="column", values="text")
    order = dict.fromkeys(zip(shown["first"], shown["second"], strict=True))
    return (
        lines.reindex([*order], columns=table.columns)
        .astype(object)
        .fillna("")
        .reset_index("second")
    )


def lines_of(numbers: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    """Lines of effects or agreements as texts, by the pattern of each column."""
    lines = [
        [pattern.format_map(line) for pattern in columns.values()]
        for line in numbers.to_dict("records")
    ]
    texts = pd.DataFrame(lines, columns=[*columns]).set_index(next(iter(columns)))
    return texts.replace("+nan to +nan", "–")  # no interval


def generated(results: Path | None) -> str:
    """Say what made a table. Those in a folder of results are compared, printed ones are not."""
    by = "`lra table`" if results is None else "`lra table --write`; `lra table --check` compares"
    return f"Made from the records of finished runs by {by}."


# ---------------------------------------------------------------------- Markdown


def markdown(table: Table, results: Path | None) -> str:
    parts = [f"# {escape_md(table.spec.title)}", generated(results)]
    parts += [f"**{escape_md(table.spec.caveat)}**"] if table.spec.caveat else []
    parts.append(grid(wide(table, escape_md, "**{}**")))
    parts.append("\n".join(f"* {escape_md(note)}" for note in table.notes))
    for title, text, body in sections(table):
        parts += [f"## {title}", escape_md(text), grid(body.map(escape_md))]
    parts += ["## Runs", grid(_runs(table, results))]
    return "\n\n".join(filter(None, parts)) + "\n"


def _runs(table: Table, results: Path | None) -> pd.DataFrame:
    """The runs of every cell, with the file of their records."""
    lines = []
    for (row, column), cell in zip(table.cells.index, each(table.cells), strict=True):
        if cell.record is None:  # the teacher of conversions
            continue
        name, place = cell.runs[0].rpartition("-seed-")[0], cell.record.path.resolve()
        if results is not None and place.is_relative_to(results.resolve()):
            name = f"[{name}](../{place.relative_to(results.resolve()).as_posix()})"
        lines.append(
            {
                "attention": row,
                "column": column,
                "run": name,
                "seeds": " ".join(map(str, cell.seed)),
                "score": " ".join(rounded(v, cell.digits + 1) for v in cell.values),
                **({} if table.costs else {"stages": "; ".join(map(_stages, cell.records))}),
                "data": "not recorded" if pd.isna(cell.fingerprint) else cell.fingerprint,
                "revision": cell.revisions,
            }
        )
    lines.sort(key=lambda line: table.rows.index.get_loc(line["attention"]))
    return pd.DataFrame(lines).set_index("attention")


def _stages(record: Record) -> str:
    """`teacher 84.1 → swap 77.5 → best 82.8`"""
    scored = record["stages"]
    return " → ".join(f"{s} {rounded(scored[s]['score'], 1)}" for s in STAGES if s in scored)


def grid(frame: pd.DataFrame) -> str:
    """A Markdown table; cells may hold links and bold text, row names are escaped."""
    rows = [
        [escape_md(str(name)), *map(str, cells)] for name, *cells in frame.itertuples(name=None)
    ]
    lines = [[frame.index.name, *frame.columns], ["---"] * (frame.shape[1] + 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# ---------------------------------------------------------------------- CSV


def to_csv(table: Table, results: Path | None) -> str:
    """A line per cell, with everything that is shown of it."""
    cells = table.cells.copy()
    mixed = all_of(cells, "mixed")
    cells.loc[mixed, ["score", "deviation"]] = math.nan  # no run is near their mean
    cells = cells.reset_index()
    places = {name: i for i, name in enumerate([*table.rows.index, *table.columns])}
    cells = cells.sort_values(["row", "column"], key=lambda names: names.map(places))
    cells["table"] = table.spec.name
    cells["values"] = [
        " ".join(rounded(score, digits + 1) for score in scores)
        for scores, digits in zip(cells["values"], cells["digits"], strict=True)
    ]
    cells["options"] = cells["options"].map(pairs_of)
    cells["runs"] = cells["runs"].map(" ".join)
    if table.costs:
        cells["steps_share"] = cells["steps_share"].map("{:g}".format)
    columns = ["table", "row", *CSV]
    columns.insert(columns.index("options") + 1, "column")
    cells = cells[[c for c in columns if c in cells]]
    cells = cells.map(lambda value: csv_text(value) if isinstance(value, str) else value)
    dtypes = {
        "seeds": "Int64",
        "needs": "Int64",
        "leapt": "Int64",
        "parameters": "Int64",
        "published": object,
    }
    cells = cells.round({"parameters": 0}).astype({c: dtypes[c] for c in dtypes if c in cells})
    return cells.to_csv(index=False, float_format="%.4f", lineterminator="\n")
