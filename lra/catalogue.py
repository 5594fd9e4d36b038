"""The list of all attentions, made from their classes: `lra list`, and docs/attentions.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

import luna
from lra.base import groups
from lra.base.config import UserError, first_line
from lra.base.disk import disk_errors, write_atomically

# The page with the table, and the lines that enclose it.
PAGE = Path("docs/attentions.md")
BEGIN, END = "<!-- lra list --write -->", "<!-- end -->"

# Sizes of the small model (configs/model/small.yaml).
HEADS, HEAD_DIM, LAYERS, LENGTH = 2, 32, 2, 1024
COLUMNS = ("name", "time", "parameters", "causal", "knobs")


def rows() -> list[dict[str, str]]:
    """Describe each attention, with its parameters in the small model at 1024 tokens; one that
    cannot be imported by its error."""
    table = []
    for name in luna.names():
        try:
            cls = luna.get(name)
            sizes: Any = {
                "n_heads": HEADS,
                "head_dim": HEAD_DIM,
                "max_len": LENGTH,
                "n_layers": LAYERS,
            }
            layers = [luna.build(name, layer=layer, **sizes) for layer in range(LAYERS)]
        except Exception as error:  # whatever a plug-in raises must not hide the others
            table.append(dict.fromkeys(COLUMNS, "") | {"name": name, "broken": first_line(error)})
            continue
        parameters = sum(p.numel() for it in layers for p in it.parameters() if p.requires_grad)
        path = groups.find("attention", name)
        # Not composed, which takes time: costs are in the file itself.
        file = yaml.load(path.read_bytes(), yaml.CSafeLoader) if path else {}
        exempt = isinstance(file.get("exempt"), str)  # on every task
        table.append(
            {
                "name": name,
                "time": cls.complexity,
                "parameters": f"{parameters:,}",
                "causal": "yes" if cls.causal_form else "",
                "knobs": "-" if exempt else ", ".join(file.get("knobs", {})),
                "profiles": ", ".join(cls.profiles),
                "paper": f"{cls.paper.title} ({cls.paper.year})",
                "url": cls.paper.url,
            }
        )
    return table


def show(*, papers: bool) -> None:
    """Print a line for each method; with `papers` another one with its paper and profiles."""
    table = rows()
    head = {column: column for column in COLUMNS} | {"name": "attention"}
    widths = {c: max(len(row[c]) for row in [head, *table]) for c in COLUMNS}
    for row in [head, *table]:
        cells = [
            row[c].rjust(widths[c]) if c == "parameters" else row[c].ljust(widths[c])
            for c in COLUMNS
        ]
        print(f"{row['name']:{widths['name']}}  {row['broken']}" if "broken" in row
              else "  ".join(cells).rstrip())  # fmt: skip
        if papers and "paper" in row:
            indent = " " * (widths["name"] + 2)
            print(f"{indent}{row['paper']}  {row['url']}  profiles {row['profiles']}")


def markdown() -> str:
    lines = ["| attention | time | parameters | causal | knobs | paper |", "|---" * 6 + "|"]
    for r in rows():
        paper = f"[{r['paper']}]({r['url']})"
        lines.append(
            f"| `{r['name']}` | {r['time']} | {r['parameters']} | {r['causal']} | {r['knobs']} "
            f"| {paper} |"
        )
    return "\n".join(lines)


def write(page: Path = PAGE) -> None:
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    before, begin, rest = text.partition(f"{BEGIN}\n")
    _, end, after = rest.partition(f"\n{END}")
    if not begin or not end:
        raise UserError(f"{page} has no lines {BEGIN} and {END}: run this in a clone of luna-lra")
    with disk_errors(page):
        write_atomically(page, f"{before}{begin}{markdown()}{end}{after}".encode())
