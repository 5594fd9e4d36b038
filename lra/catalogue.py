"""The list of all attentions, made from their classes and grouped by family: `lra list`, and
docs/attentions.md.

What the classes of our own methods say is kept in catalogue.json (methods.py), because asking them
takes the import of torch. `lra list --write` (`make tables`) writes both.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from lra import methods
from lra.base import groups
from lra.base.code import hash_modules
from lra.base.disk import disk_errors, read_json, write_atomically, write_json
from lra.base.errors import UserError, first_line
from lra.looks import FAMILIES, OTHER, Family, family_named

# The page with the table, and the lines that enclose it.
PAGE = Path("docs/attentions.md")
BEGIN, END = "<!-- lra list --write -->", "<!-- end -->"

DESCRIBED = (
    "title",
    "family",
    "marker",
    "time",
    "parameters",
    "causal",
    "state size",
    "profiles",
    "paper",
    "url",
)  # by a method's class

# Those of the small model (configs/model/small.yaml), with two layers.
SIZES: dict[str, Any] = {"d_model": 64, "n_heads": 2, "max_len": 1024, "n_layers": 2}
PART = "attention"  # whose parameters are counted: projections around it are the network's
# On a narrow terminal the last ones are left out.
COLUMNS = ("attention", "name", "time", "causal", "parameters", "state size", "knobs", "protocols")


def add_arguments(listing: argparse.ArgumentParser) -> None:
    how = listing.add_mutually_exclusive_group()
    how.add_argument("--papers", action="store_true", help="with papers and profiles")
    how.add_argument("--write", action="store_true", help="write docs/attentions.md's table")
    listing.set_defaults(run=lambda a: write() if a.write else show(papers=a.papers))


def rows() -> list[dict[str, str]]:
    """Describe each attention, with its parameters in the small model at 1024 tokens. What
    catalogue.json says of a method holds while its code is the same, so torch is imported for the
    others alone."""
    kept, modules = read_json(methods.KEPT) or {}, methods.ours()
    table = []
    for name in methods.names():
        row, module = kept.get(name, {}), modules.get(name)
        if module is None or row.get("code") != hash_modules(module):
            row = describe(name)
        called = {"attention": name, "name": row["title"] or name, **of_file(name)}
        table.append(called | row)
    return table


def of_file(name: str) -> dict[str, str]:
    """What the file of an attention says: its knobs, and the published protocols whose authors ran
    it, which are those that it has a preset for."""
    file = _file("attention", name)
    exempt = isinstance(file.get("exempt"), str)  # on every task
    presets = file.get("presets", {})
    published = [protocol for protocol in groups.names("protocol") if protocol in presets]
    return {
        "knobs": "-" if exempt else ", ".join(file.get("knobs", {})),
        "protocols": ", ".join(published),
    }


def _file(group: str, name: str) -> dict[str, Any]:
    """A file as it is: composing it takes time, and what is asked for stands in it."""
    path = groups.find(group, name)
    return (yaml.load(path.read_bytes(), yaml.CSafeLoader) or {}) if path else {}


def describe(name: str) -> dict[str, str]:
    """Say what the class of a method says; of one that cannot be imported or built, its error."""
    import luna

    try:
        cls = luna.get(name)
        mixers = [luna.mixer(name, layer=i, **SIZES) for i in range(SIZES["n_layers"])]
        layers = [part for mixer in mixers for part, kind in mixer.parts() if kind == PART]
        state = spelt_state(name)
    except Exception as error:  # whatever a plug-in raises must not hide the others
        return dict.fromkeys(DESCRIBED, "") | {"knobs": first_line(error)}
    parameters = sum(p.numel() for it in layers for p in it.parameters() if p.requires_grad)
    values = (
        cls.title,
        cls.family,
        cls.marker,
        cls.complexity,
        f"{parameters:,}",
        "yes" if cls.declared.causal_form else "",
        state,
        ", ".join(cls.profiles),
        f"{cls.paper.title} ({cls.paper.year})",
        cls.paper.url,
    )
    return dict(zip(DESCRIBED, values, strict=True))


def spelt_state(name: str) -> str:
    """How many numbers a head keeps between tokens, `-` without a causal form."""
    from lra.compute.state import state_size

    size = state_size(name, **SIZES)
    return "-" if size is None else f"{size:,}" if isinstance(size, int) else size


def described() -> dict[str, dict[str, str]]:
    """Describe our own methods anew, with the hash of the code that says so, as
    catalogue.json has them."""
    modules = sorted(methods.ours().items())
    return {name: describe(name) | {"code": hash_modules(module)} for name, module in modules}


def grouped() -> Iterator[tuple[Family, list[dict[str, str]]]]:
    """Each family that has methods, with their rows."""
    table = rows()
    for family in (*FAMILIES, OTHER):
        if of_family := [row for row in table if family_named(row["family"]) is family]:
            yield family, of_family


def show(*, papers: bool) -> None:
    """Print a line for each method, under its family; with `papers` another one with its paper and
    profiles."""
    heading = dict(zip(COLUMNS, COLUMNS, strict=True))
    table = list(grouped())
    # One that cannot be built has nothing but its error, at the end of its line.
    lines = [heading, *(row for _, of_family in table for row in of_family if row["time"])]
    widths = {column: max(len(line[column]) for line in lines) for column in COLUMNS}
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else sum(widths.values()) * 2
    shown = fitting(widths, room)

    def line(row: dict[str, str]) -> str:
        cells = [f"{row[column]:{widths[column]}}" for column in shown]
        error = [] if row["time"] or "knobs" in shown else [row["knobs"]]
        return "  ".join([*cells, *error]).rstrip()

    print(line(heading))
    for family, of_family in table:
        print(f"\n# {family.name}")
        for row in of_family:
            print(line(row))
            if papers and row.get("paper"):
                print(f"    {row['paper']}  {row['url']}  profiles {row['profiles']}")
    if left_out := COLUMNS[len(shown) :]:
        print(f"\nNot shown on {room} columns: {', '.join(left_out)}.")


def fitting(widths: Mapping[str, int], room: int) -> list[str]:
    """The first of these columns that a line of this many letters has room for."""
    ends = itertools.accumulate(width + 2 for width in widths.values())
    return [column for column, end in zip(widths, ends, strict=True) if end - 2 <= room]


def markdown() -> str:
    """A heading, a sentence and a table for each family."""
    parts = []
    columns = [*COLUMNS, "paper"]
    for family, of_family in grouped():
        lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for row in of_family:
            cells = f"`{row['attention']}`", *(row[column] for column in COLUMNS[1:])
            lines.append(f"| {' | '.join(cells)} | [{row['paper']}]({row['url']}) |")
        table = "\n".join(lines)
        parts.append(f"### {family.name.capitalize()}\n\n{family.says}\n\n{table}")
    return "\n\n".join(parts)


def write(page: Path = PAGE) -> None:
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    before, begin, rest = text.partition(f"{BEGIN}\n")
    _, end, after = rest.partition(f"\n{END}")
    if not begin or not end:
        raise UserError(f"{page} has no lines {BEGIN} and {END}: run this in a clone of luna-lra")
    with disk_errors(methods.KEPT):
        write_json(methods.KEPT, described())
    with disk_errors(page):
        write_atomically(page, f"{before}{begin}{markdown()}{end}{after}".encode())
