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
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("attention", "time", "parameters", "causal", "profiles", "paper"):
        justify = "right" if column == "parameters" else "left"
        table.add_column(column, justify=justify, no_wrap=column != "paper")
    for row in rows():
        paper = f"[link={row['url']}]{row['paper']}[/link]"
        table.add_row(
            row["name"], row["time"], row["parameters"], row["causal"], row["profiles"], paper
        )
    Console(highlight=False).print(table)


def markdown() -> str:
    lines = ["| attention | time | parameters | causal | paper |", "|---|---|---|---|---|"]
    for r in rows():
        paper = f"[{r['paper']}]({r['url']})"
        lines.append(
            f"| `{r['name']}` | {r['time']} | {r['parameters']} | {r['causal']} | {paper} |"
        )
    return "\n".join(lines)
