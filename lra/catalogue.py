"""Every attention at a glance, from what the classes say of themselves: `lra list`, the README's
table."""

from __future__ import annotations

import luna

# The slot of the small model (configs/model/small.yaml), two layers of which make a network.
HEADS, HEAD_DIM, LAYERS, LENGTH = 2, 32, 2, 1024


def rows() -> list[dict[str, str]]:
    """One row a method; parameters are those the method adds to the small model at 1024 tokens."""
    found = []
    for name in luna.names():
        cls = luna.get(name)
        built = luna.build(name, n_heads=HEADS, head_dim=HEAD_DIM, max_len=LENGTH)
        parameters = LAYERS * sum(p.numel() for p in built.parameters() if p.requires_grad)
        found.append(
            {
                "name": name,
                "time": cls.complexity,
                "parameters": f"{parameters:,}",
                "causal": "yes" if cls.causal_form else "",
                "profiles": ", ".join(cls.profiles),
                "paper": f"{cls.paper.title} ({cls.paper.year})",
                "url": cls.paper.url,
            }
        )
    return found


def show() -> None:
    """Two lines a method: what it costs, and where it comes from."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    found = rows()
    columns = ("name", "time", "parameters", "causal", "profiles")
    head = dict(
        zip(columns, ("attention", "time", "parameters", "causal", "profiles"), strict=True)
    )
    widths = {c: max(len(r[c]) for r in [head, *found]) for c in columns}
    for row in [head, *found]:
        cells = [
            row[c].rjust(widths[c]) if c == "parameters" else row[c].ljust(widths[c])
            for c in columns
        ]
        console.print(
            "  ".join(cells).rstrip(), style="bold" if row is head else None, markup=False
        )
        if row is not head:
            indent = " " * (widths["name"] + 2)
            console.print(f"{indent}{row['paper']}  {row['url']}", style="dim", markup=False)


def markdown() -> str:
    lines = ["| attention | time | parameters | causal | paper |", "|---|---|---|---|---|"]
    for r in rows():
        paper = f"[{r['paper']}]({r['url']})"
        lines.append(
            f"| `{r['name']}` | {r['time']} | {r['parameters']} | {r['causal']} | {paper} |"
        )
    return "\n".join(lines)
