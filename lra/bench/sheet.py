"""The tables of `lra bench attention`: CSV and JSON to compute with, Markdown to read."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lra.bench.files import provenance
from lra.disk import write_json

Row = dict[str, Any]

TAIL = 3  # lengths, the longest ones measured, that a slope is fitted over
MEASURES: dict[str, tuple[str, Callable[[Row], float | None]]] = {
    "train_ms": ("Time of forward + backward, ms", lambda r: _times(r.get("train_seconds"), 1e3)),
    "forward_ms": ("Time of forward, ms", lambda r: _times(r.get("forward_seconds"), 1e3)),
    "peak_mib": (
        "Peak memory of forward + backward, MiB",
        lambda r: _times(r.get("peak_bytes"), 2**-20),
    ),
    "mflops": ("FLOPs of forward, millions", lambda r: _times(r["flops"], 1e-6)),
}


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def ratio(row: Row) -> float | None:
    """Forward + backward, to that of the plain version in lra/bench/plain.py."""
    return row["train_seconds"] / row["plain_seconds"] if "plain_seconds" in row else None


def label(row: Row) -> str:
    return row["method"] if row["profile"] == "strict" else f"{row['method']} ({row['profile']})"


def by_method(rows: list[Row]) -> dict[str, list[Row]]:
    """Rows of each method, by rising length."""
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda r: r["n"]):
        groups.setdefault(label(row), []).append(row)
    return groups


def slope(lengths: list[int], values: list[float | None]) -> float | None:
    """The fitted exponent of n over the longest TAIL lengths that have a value: short ones tell
    of constant costs. None with fewer."""
    points = [(math.log(n), math.log(v)) for n, v in zip(lengths, values, strict=True) if v]
    points = points[-TAIL:]
    if len(points) < TAIL:
        return None
    x, y = (sum(axis) / TAIL for axis in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def write(rows: list[Row], facts: dict[str, Any], stem: Path) -> list[Path]:
    paths = [stem.parent / f"{stem.name}.{kind}" for kind in ("csv", "json", "md")]
    _csv(rows, paths[0])
    write_json(paths[1], facts | {"rows": rows})
    paths[2].write_text(markdown(rows, facts), encoding="utf-8")
    return paths


def _csv(rows: list[Row], path: Path) -> None:
    columns = ("method", "profile", "n", *MEASURES, "to_plain", "spread", "stopped")
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(columns)
        for group in by_method(rows).values():
            for row in group:
                values = {key: read(row) for key, (_, read) in MEASURES.items()}
                values["to_plain"] = ratio(row)
                cells = row | {k: None if v is None else f"{v:.6g}" for k, v in values.items()}
                if not row["stopped"]:
                    cells["spread"] = f"{row['slowest_seconds'] / row['train_seconds']:.3f}"
                out.writerow([cells.get(column) for column in columns])


def markdown(rows: list[Row], facts: dict[str, Any]) -> str:
    tables = [line for key in MEASURES for line in _table(rows, key)]
    return "\n".join([*_header(facts), *tables, *_ratios(rows), ""])


def _header(facts: dict[str, Any]) -> list[str]:
    settings = facts["settings"]
    return [
        "# Every attention alone, by length",
        "",
        *provenance(facts),
        f"- slot: batch {settings['batch']}, {settings['heads']} heads of {settings['head_dim']}, "
        "float32, no mask, default options; `softmax` is torch's fused kernel, "
        "`softmax (published)` writes the matrix out",
        f"- times: the fastest call of {settings['repeats']} interleaved rounds, each method in a "
        "process of its own; forward without gradients in evaluation mode, forward + backward in "
        "training mode",
        "- memory: most bytes alive at once beyond inputs and parameters, by the allocator",
        f"- slope: the fitted exponent of n over the longest {TAIL} lengths measured",
        f"- `> {settings['seconds']:g} s` or `> {settings['mib']:g} MiB` in a cell: not run, "
        "because one pass, carried forward from the last length by its FLOPs, would take more",
        "",
        "`lra bench attention` makes this file.",
    ]


def _table(rows: list[Row], key: str) -> list[str]:
    title, read = MEASURES[key]
    lengths = sorted({row["n"] for row in rows})
    lines = ["", f"## {title}", "", line(["attention", *(f"{n:,}" for n in lengths), "slope"]),
             "|---|" + "---:|" * (len(lengths) + 1)]  # fmt: skip
    for name, group in sorted(by_method(rows).items(), key=lambda g: _order(g[1], read)):
        values = [read(row) for row in group]
        cells = [
            row["stopped"] if value is None else number(value)
            for row, value in zip(group, values, strict=True)
        ]
        fitted = slope([row["n"] for row in group], values)
        lines.append(line([f"`{name}`", *cells, "–" if fitted is None else f"{fitted:.2f}"]))
    return lines


def _ratios(rows: list[Row]) -> list[str]:
    """Empty where nothing was compared: not at lengths that the plain versions' blocks divide."""
    lengths = sorted({row["n"] for row in rows})
    compared = {
        name: [ratio(row) for row in group]
        for name, group in by_method(rows).items()
        if any(ratio(row) for row in group)
    }
    if not compared:
        return []
    others = ", ".join(f"`{name}`" for name in by_method(rows) if name not in compared)
    return [
        "", "## Time of forward + backward, relative to plain PyTorch", "",
        "Beside the same method straight from its formula (`lra/bench/plain.py`), calls in turn; "
        f"below 1 is faster than plain. Nothing to compare with: {others or 'none'}.", "",
        line(["attention", *(f"{n:,}" for n in lengths)]), "|---|" + "---:|" * len(lengths),
        *(line([f"`{name}`", *("–" if r is None else f"{r:.2f}" for r in ratios)])
          for name, ratios in sorted(compared.items(), key=lambda item: item[1][-1] or 0)),
    ]  # fmt: skip


def _order(group: list[Row], read: Callable[[Row], float | None]) -> tuple[int, float]:
    """Methods that got further first, then the cheaper ones."""
    values = [value for row in group if (value := read(row)) is not None]
    return -len(values), values[-1] if values else 0.0


def line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
