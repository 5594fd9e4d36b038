"""The list of all attentions, made from their classes: `lra list`, and docs/attentions.md."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import yaml

from lra.base import groups
from lra.base.config import UserError, first_line
from lra.base.disk import disk_errors, write_atomically

# The page with the table, and the lines that enclose it.
PAGE = Path("docs/attentions.md")
BEGIN, END = "<!-- lra list --write -->", "<!-- end -->"

# Those of the small model (configs/model/small.yaml), with two layers.
SIZES: dict[str, Any] = {"d_model": 64, "n_heads": 2, "max_len": 1024, "n_layers": 2}
PART = "attention"  # whose parameters are counted: projections around it are the network's
COLUMNS = ("attention", "time", "parameters", "causal", "knobs")


def add_arguments(listing: argparse.ArgumentParser) -> None:
    how = listing.add_mutually_exclusive_group()
    how.add_argument("--papers", action="store_true", help="with papers and profiles")
    how.add_argument("--write", action="store_true", help="write docs/attentions.md's table")
    listing.set_defaults(run=lambda a: write() if a.write else show(papers=a.papers))


def rows() -> list[dict[str, str]]:
    """Describe each attention, with its parameters in the small model at 1024 tokens; one that
    cannot be imported by its error."""
    import luna

    table = []
    for name in luna.names():
        try:
            cls = luna.get(name)
            mixers = [luna.mixer(name, layer=i, **SIZES) for i in range(SIZES["n_layers"])]
            layers = [part for mixer in mixers for part, kind in mixer.parts() if kind == PART]
        except Exception as error:  # whatever a plug-in raises must not hide the others
            row = dict.fromkeys((*COLUMNS, "paper", "url", "profiles"), "")
            table.append(row | {"attention": name, "knobs": first_line(error)})
            continue
        parameters = sum(p.numel() for it in layers for p in it.parameters() if p.requires_grad)
        path = groups.find("attention", name)
        # Not composed, which takes time: costs are in the file itself.
        file = yaml.load(path.read_bytes(), yaml.CSafeLoader) if path else {}
        exempt = isinstance(file.get("exempt"), str)  # on every task
        table.append(
            {
                "attention": name,
                "time": cls.complexity,
                "parameters": f"{parameters:,}",
                "causal": "yes" if cls.declared.causal_form else "",
                "knobs": "-" if exempt else ", ".join(file.get("knobs", {})),
                "profiles": ", ".join(cls.profiles),
                "paper": f"{cls.paper.title} ({cls.paper.year})",
                "url": cls.paper.url,
            }
        )
    return table


def show(*, papers: bool) -> None:
    """Print a line for each method; with `papers` another one with its paper and profiles."""
    table = [dict(zip(COLUMNS, COLUMNS, strict=True)), *rows()]
    widths = {column: max(len(row[column]) for row in table) for column in COLUMNS[:-1]}
    for row in table:
        print(*(f"{row[c]:{width}}" for c, width in widths.items()), row["knobs"], sep="  ")
        if papers and row.get("paper"):
            print(f"    {row['paper']}  {row['url']}  profiles {row['profiles']}")


def markdown() -> str:
    lines = ["| attention | time | parameters | causal | knobs | paper |", "|---" * 6 + "|"]
    for row in rows():
        cells = f"`{row['attention']}`", *(row[c] for c in COLUMNS[1:])
        lines.append(f"| {' | '.join(cells)} | [{row['paper']}]({row['url']}) |")
    return "\n".join(lines)


def write(page: Path = PAGE) -> None:
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    before, begin, rest = text.partition(f"{BEGIN}\n")
    _, end, after = rest.partition(f"\n{END}")
    if not begin or not end:
        raise UserError(f"{page} has no lines {BEGIN} and {END}: run this in a clone of luna-lra")
    with disk_errors(page):
        write_atomically(page, f"{before}{begin}{markdown()}{end}{after}".encode())
