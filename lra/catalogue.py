"""The list of all attentions, made from their classes: `lra list` and the README's table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import luna
from lra.base import groups
from lra.base.config import UserError
from lra.base.disk import disk_errors, write_atomically

# The lines of the README that enclose the table.
BEGIN, END = "<!-- lra list --markdown -->", "<!-- end -->"

# Sizes of the small model (configs/model/small.yaml).
HEADS, HEAD_DIM, LAYERS, LENGTH = 2, 32, 2, 1024


def rows() -> list[dict[str, str]]:
    """Describe each attention, with its parameters in the small model at 1024 tokens."""
    table = []
    for name in luna.names():
        cls = luna.get(name)
        built = luna.build(name, n_heads=HEADS, head_dim=HEAD_DIM, max_len=LENGTH)
        parameters = LAYERS * sum(p.numel() for p in built.parameters() if p.requires_grad)
        table.append(
            {
                "name": name,
                "time": cls.complexity,
                "parameters": f"{parameters:,}",
                "causal": "yes" if cls.causal_form else "",
                "knobs": knobs(name),
                "profiles": ", ".join(cls.profiles),
                "paper": f"{cls.paper.title} ({cls.paper.year})",
                "url": cls.paper.url,
            }
        )
    return table


def knobs(name: str) -> str:
    """The options that decide a method's cost, as its file declares them; `-` where none of them
    can meet the compute budget on any task."""
    if groups.find("attention", name) is None:
        return ""
    file: Any = OmegaConf.to_container(groups.read("attention", name))
    return "-" if isinstance(file.get("exempt"), str) else ", ".join(file.get("knobs", {}))


def show() -> None:
    """Print each method's cost, with its paper and profiles in the line below."""
    from rich.console import Console
    from rich.padding import Padding

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 10_000  # without line breaks
    table = rows()
    columns = ("name", "time", "parameters", "causal", "knobs")
    head = {column: column for column in columns} | {"name": "attention"}
    widths = {c: max(len(r[c]) for r in [head, *table]) for c in columns}
    indent = widths["name"] + 2
    for row in [head, *table]:
        cells = [
            row[c].rjust(widths[c]) if c == "parameters" else row[c].ljust(widths[c])
            for c in columns
        ]
        style = "bold" if row is head else None
        console.print("  ".join(cells).rstrip(), style=style, soft_wrap=True)
        if row is not head:
            source = f"{row['paper']}  {row['url']}  profiles {row['profiles']}"
            console.print(Padding(source, (0, 0, 0, indent), expand=False), style="dim")


def markdown() -> str:
    lines = ["| attention | time | parameters | causal | knobs | paper |", "|---" * 6 + "|"]
    for r in rows():
        paper = f"[{r['paper']}]({r['url']})"
        lines.append(
            f"| `{r['name']}` | {r['time']} | {r['parameters']} | {r['causal']} | {r['knobs']} "
            f"| {paper} |"
        )
    return "\n".join(lines)


def write(readme: Path) -> None:
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    before, begin, rest = text.partition(f"{BEGIN}\n")
    _, end, after = rest.partition(f"\n{END}")
    if not begin or not end:
        raise UserError(f"{readme} has no lines {BEGIN} and {END}: run this in a clone of luna-lra")
    with disk_errors(readme):
        write_atomically(readme, f"{before}{begin}{markdown()}{end}{after}".encode())
