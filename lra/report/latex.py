r"""A table in LaTeX, for `\input`: with all columns of the page, and as papers print it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from lra.base.errors import one_line
from lra.report.cell import MOST_LISTED, all_of, rounded
from lra.report.names import heading, names_of
from lra.report.notes import scored_by
from lra.report.render import generated, markdown, to_csv, wide
from lra.report.table import Table

TEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "×": r"$\times$",
        "±": r"$\pm$",
        "∅": r"$\emptyset$",
        "↓": r"$\downarrow$",
        "–": "--",
        **{special: f"\\{special}" for special in "&%$#_{}"},
    }
)
LONG = 24  # letters of a name; of longer ones the column is narrow and they are wrapped


def latex(table: Table, results: Path | None) -> str:
    """The table, with the runs of each row in comments."""
    comments = [
        f"{table.spec.title}. {generated(results).replace('`', '')}",
        table.spec.caveat,
        *table.notes,
    ]
    comments += [
        f"{row}, {column}: {' '.join(names)}"
        for (row, column), names in table.cells["runs"].items()
        if names
    ]
    body = wide(table, escape_tex, r"\textbf{{{}}}")
    body = body.rename(index=escape_tex, columns=escape_tex).reset_index()
    shape = "l" + "r" * (body.shape[1] - 1)
    text = body.to_latex(index=False, column_format=shape, escape=False)
    return "\n".join(f"% {one_line(comment)}" for comment in comments if comment) + "\n" + text


def escape_tex(text: str) -> str:
    return one_line(str(text)).translate(TEX)


# ---------------------------------------------------------------------- for a paper


def paper(table: Table, results: Path | None) -> str:
    """Names in words and scores, no wider than a line; the best simple rule is the last row."""
    names, seeds = names_of(table), table.cells.loc[table.cells["seeds"] > 0, "seeds"]
    usual = int(seeds.mode().max())  # not said again in each cell
    # Of several recoveries the first is enough.
    averages = [name for name in table.summaries[:1] if table.rows[name].notna().any()]
    columns = [*table.columns, *averages]
    body = [
        [escape_tex(names[row]), *(_score(table, row, column, usual) for column in columns)]
        for row in table.rows.index
    ]
    rules = ["best simple rule", *(_best(table, column) for column in columns)]
    heads = [heading(table, c) if c in table.columns else c for c in columns]
    long = max(map(len, names.values())) > LONG
    width = "15em" if len(columns) < 3 else "9em" if len(columns) == 3 else "7.5em"
    name = rf">{{\raggedright\arraybackslash}}p{{{width}}}" if long else "l"
    lines = [
        *(f"% {one_line(comment)}" for comment in _said(table, results, seeds, usual)),
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        *([r"\setlength{\tabcolsep}{3pt}%"] if len(columns) > 2 else []),
        rf"\begin{{tabular}}{{{name}{'r' * len(columns)}}}",
        r"\toprule",
        _line(["attention", *map(_head, heads)]),
        r"\midrule",
        *_apart([*map(_line, body)], space=long),
        *([r"\midrule", _line(rules)] if any(rules[1:]) else []),
        r"\bottomrule",
        r"\end{tabular}}",
    ]
    return "\n".join(lines) + "\n"


def _head(words: str) -> str:
    """The head of a column of numbers, a long one in two lines."""
    first, space, rest = escape_tex(words).partition(" ")
    return (
        rf"\shortstack[r]{{\strut {first}\\{rest}\strut}}"
        if space and len(words) > 9
        else first + space + rest
    )


def _apart(lines: list[str], *, space: bool) -> Iterator[str]:
    """The lines of a body, with space between those whose names may be wrapped."""
    for i, line in enumerate(lines):
        if space and i:
            yield r"\addlinespace[2pt]"
        yield line


def _line(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _said(table: Table, results: Path | None, seeds: pd.Series, usual: int) -> Iterator[str]:
    """The comments above: packages, then what a caption has to say."""
    yield r"\usepackage{array,booktabs,graphicx}"
    yield f"{table.spec.title}. {generated(results).replace('`', '')}"
    if table.spec.caveat:
        yield table.spec.caveat
    yield table.notes[0]
    other = "" if seeds.nunique() == 1 else ", or as many as stand in brackets"
    over = f"{usual} seed{'s' if usual > 1 else ''}{other}"
    scores = scored_by(table.runs) if table.costs else "Scores in % on dev"
    yield f"Caption: {scores}, mean and sample standard deviation over {over}."
    marks = {*all_of(table.cells, "mark")}
    if table.cells["best"].any():
        yield "Bold: the best mean of its column."
    if "↓" in marks:
        yield "Down arrow: shown to be worse than the best row."
    if "∅" in marks:
        yield "Empty set: no better than the best simple rule."
    if all_of(table.cells, "mixed").any():
        yield "Where seeds are of two kinds, all are listed: no run is near their mean."


def _score(table: Table, row: str, column: str, usual: int) -> str:
    """`50.1 ± 0.7`, with the number of seeds if it is not the usual one; no mean of two kinds of
    seeds."""
    if column not in table.columns:
        value = table.rows.loc[row, column]
        return "--" if pd.isna(value) else f"{value:.1f}"
    if (row, column) not in table.cells.index:
        return "--"
    cell = table.cell(row, column)
    mark = {"∅": r"$^{\emptyset}$", "↓": r"$^{\downarrow}$"}.get(cell.mark, "")
    if cell.mixed:
        ordered = sorted(cell.values, reverse=cell.sign < 0)
        shown = [rounded(value, cell.digits) for value in ordered]
        shown = shown if len(shown) <= MOST_LISTED else [shown[0], "...", shown[-1]]
        return ", ".join(shown) + mark
    text = rounded(cell.score, cell.digits)
    text = rf"\textbf{{{text}}}" if cell.best else text
    if pd.notna(cell.deviation):
        text += rf"\,{{\small$\pm$\,{rounded(cell.deviation, cell.digits)}}}"
    if cell.seeds not in (0, usual):
        text += f" ({cell.seeds})"
    return text + mark


def _best(table: Table, column: str) -> str:
    """The score of the best rule of a column; empty where none is known, or some are missing."""
    if column not in table.columns or (name := table.best_rule(column)) is None:
        return ""
    return rounded(table.rules.loc[name, column], table.column(column)["digits"].iloc[0])


WRITERS = {"md": markdown, "csv": to_csv, "tex": latex, "paper": paper}
ENDINGS = {"paper": "-paper.tex"}  # of files; of others `.md` and so on
