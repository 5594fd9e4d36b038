"""The list of all attentions, made from their classes: `lra list`, and docs/attentions.md.

What the classes of our own methods say is kept in catalogue.json beside this file, because asking
them takes the import of torch. `lra list --write` (`make tables`) writes both.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from lra.base import groups
from lra.base.code import find_source, hash_modules
from lra.base.disk import disk_errors, read_json, write_atomically, write_json
from lra.base.errors import UserError, first_line
from lra.base.places import PACKAGE

# The page with the table, and the lines that enclose it.
PAGE = Path("docs/attentions.md")
BEGIN, END = "<!-- lra list --write -->", "<!-- end -->"

KEPT = PACKAGE / "catalogue.json"
ENTRY_POINTS = "luna.attention"  # as luna/registry.py has it, whose import would take torch
DESCRIBED = ("time", "parameters", "causal", "profiles", "paper", "url")  # by a method's class

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
    """Describe each attention, with its parameters in the small model at 1024 tokens. What KEPT
    says of a method holds while its code is the same, so torch is imported for the others alone."""
    kept, modules = read_json(KEPT) or {}, ours()
    table = []
    for name in names():
        row, module = kept.get(name, {}), modules.get(name)
        if module is None or row.get("code") != hash_modules(module):
            row = describe(name)
        table.append({"attention": name, "knobs": knobs_of(name)} | row)
    return table


def names() -> list[str]:
    if luna := sys.modules.get("luna"):  # methods may be registered in this process
        return list(luna.names())
    return sorted({*ours(), *groups.installed(ENTRY_POINTS)})


def ours() -> dict[str, str]:
    """The modules of our own methods, attentions and mixers, by name."""
    found: dict[str, str] = {}
    for folder in ("luna.attention", "luna.mixers"):
        package = find_source(folder)
        files = package.parent.glob("[!_]*.py") if package else ()
        found |= {file.stem: f"{folder}.{file.stem}" for file in files}
    return found


def knobs_of(name: str) -> str:
    path = groups.find("attention", name)
    # Not composed, which takes time: costs are in the file itself.
    file = yaml.load(path.read_bytes(), yaml.CSafeLoader) if path else {}
    exempt = isinstance(file.get("exempt"), str)  # on every task
    return "-" if exempt else ", ".join(file.get("knobs", {}))


def describe(name: str) -> dict[str, str]:
    """Say what the class of a method says; of one that cannot be imported or built, its error."""
    import luna

    try:
        cls = luna.get(name)
        mixers = [luna.mixer(name, layer=i, **SIZES) for i in range(SIZES["n_layers"])]
        layers = [part for mixer in mixers for part, kind in mixer.parts() if kind == PART]
    except Exception as error:  # whatever a plug-in raises must not hide the others
        return dict.fromkeys(DESCRIBED, "") | {"knobs": first_line(error)}
    parameters = sum(p.numel() for it in layers for p in it.parameters() if p.requires_grad)
    values = (
        cls.complexity,
        f"{parameters:,}",
        "yes" if cls.declared.causal_form else "",
        ", ".join(cls.profiles),
        f"{cls.paper.title} ({cls.paper.year})",
        cls.paper.url,
    )
    return dict(zip(DESCRIBED, values, strict=True))


def described() -> dict[str, dict[str, str]]:
    """Describe our own methods anew, with the hash of the code that says so, as KEPT has them."""
    modules = sorted(ours().items())
    return {name: describe(name) | {"code": hash_modules(module)} for name, module in modules}


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
    with disk_errors(KEPT):
        write_json(KEPT, described())
    with disk_errors(page):
        write_atomically(page, f"{before}{begin}{markdown()}{end}{after}".encode())
