"""Tables as LaTeX, with the booktabs package: one file a tabular, to be read by `\\input`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from lra.report.leaderboard import Cell, Table
from lra.report.render import COSTS, GENERATED, Beside, average, beside, costs, notes, one_line

SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "×": r"$\times$",
    "±": r"$\pm$",
    "≈": r"$\approx$",
    "–": "--",
}


def latex(table: Table, results: Path) -> str:
    """The table; the runs of each row stand in comments beside it."""
    single = table.tasks[0] if len(table.tasks) == 1 else None
    lines = []
    for row in table.rows:
        cells = [_cell(row.cells.get(t)) for t in table.tasks]
        tail = costs(row.cells[single], timed=table.timed[single]) if single else [average(row)]
        lines.append(line([escape_tex(row.label), *cells, *map(escape_tex, tail)]))
        for task, cell in row.cells.items():
            runs = " ".join(f"{r['identity']}/seed-{r['seed']}" for r in cell.records)
            lines.append(f"% {row.label}, {task}: {runs}")
    head = ["attention", *table.tasks, *(COSTS if single else ["average"])]
    return tabular(table.spec.title, notes(table), head, lines)


def cost(table: Table, results: Path) -> str:
    """What the runs of several tasks cost, task by task; with one task it stands in the table."""
    if len(table.tasks) == 1:
        return ""
    lines: list[str] = []
    for task in table.tasks:
        lines += [r"\midrule"] if lines else []
        lines.append(rf"\multicolumn{{{len(COSTS) + 1}}}{{l}}{{\emph{{{escape_tex(task)}}}}} \\")
        for row in (r for r in table.rows if task in r.cells):
            told = costs(row.cells[task], timed=table.timed[task])
            lines.append(line(map(escape_tex, [row.label, *told])))
    return tabular(f"{table.spec.title}: cost", notes(table), ["attention", *COSTS], lines)


def beside_published(table: Table, results: Path) -> str:
    return beside_tabular(table.spec.title, beside(table))


def beside_tabular(title: str, found: Beside | None) -> str:
    if found is None:
        return ""
    body = [line(map(escape_tex, row)) for row in found.body]
    told = [found.explained, *(f"{source}." for source in found.sources)]
    return tabular(f"{title}: beside the published numbers", told, found.head, body)


def tabular(title: str, comments: Iterable[str], head: Sequence[str], body: Iterable[str]) -> str:
    above = [f"{title}. {GENERATED.replace('`', '')}", *comments]
    lines = [
        *(f"% {one_line(comment)}" for comment in above),
        rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        r"\toprule",
        line(map(escape_tex, head)),
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    spread = "" if cell.deviation is None else rf" \pm {cell.deviation:.1f}"
    mean = rf"\mathbf{{{cell.mean:.1f}}}" if cell.best else f"{cell.mean:.1f}"
    tie = r"^{\approx}" if cell.tie is not None else ""
    return f"${mean}{spread}{tie}$ ({len(cell.records)})"


def escape_tex(text: str) -> str:
    return re.sub(r"[\\&%$#_{}~^<>|×±≈–]", lambda m: SPECIAL.get(m[0], "\\" + m[0]), one_line(text))
