"""The tables of `lra bench convert`: a number, its ratio to softmax, and where the two cross."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lra.bench.convert_host import Geometry
from lra.bench.files import provenance
from lra.bench.sheet import Row, by_method, label, line, number

PASSES = {"inference": "Inference", "step": "Training step"}
MEASURES = {  # a row's key: what it is called, factor to its unit
    "seconds": ("time, ms", 1e3),
    "peak_bytes": ("peak memory, MiB", 2**-20),
}


@dataclass(frozen=True, kw_only=True)
class BreakEven:
    """From where on a method costs less than softmax at every length that both were measured at."""

    measured: str
    measure: str
    method: str
    above: int | None  # longest length where it did not yet; None: less at every length
    below: int | None  # the next one, where it does; None: at none, up to `above`
    n: float | None  # between the two, on a line in the logarithms

    @property
    def told(self) -> str:
        if self.n is not None:
            return f"≈ {_two_digits(self.n):,}"
        return f"≤ {self.below:,}" if self.above is None else f"> {self.above:,}"


def _two_digits(n: float) -> int:
    digits = 10 ** max(0, math.floor(math.log10(n)) - 1)
    return round(n / digits) * digits


def break_evens(rows: list[Row]) -> Iterator[BreakEven]:
    for measured in PASSES:
        groups = by_method([row for row in rows if row["measured"] == measured])
        for measure in MEASURES:
            for method in groups:
                ratios = ratios_to_softmax(groups, method, measure)
                if method != "softmax" and ratios:
                    # As they are shown: 1.00 is not less.
                    crossing = _crossing({n: round(ratio, 2) for n, ratio in ratios.items()})
                    yield BreakEven(measured=measured, measure=measure, method=method, **crossing)


def ratios_to_softmax(groups: dict[str, list[Row]], method: str, measure: str) -> dict[int, float]:
    """To softmax, by rising length."""
    softmax, own = (
        {row["n"]: row[measure] for row in groups[name] if row.get(measure)}
        for name in ("softmax", method)
    )
    return {n: own[n] / softmax[n] for n in own if n in softmax}


def _crossing(ratios: dict[int, float]) -> dict[str, Any]:
    lengths = list(ratios)
    if ratios[lengths[-1]] >= 1:
        return {"above": lengths[-1], "below": None, "n": None}
    for low, high in reversed(list(pairwise(lengths))):
        a, b = math.log(ratios[low]), math.log(ratios[high])
        if a >= 0:
            n = math.exp(math.log(low) + a / (a - b) * math.log(high / low))
            return {"above": low, "below": high, "n": n}
    return {"above": None, "below": lengths[0], "n": None}


# ---------------------------------------------------------------------- tables

Cells = list[list[str]]  # the first line is the head


def tables(rows: list[Row]) -> Iterator[tuple[str, Cells]]:
    crossings = {(c.measured, c.measure, c.method): c.told for c in break_evens(rows)}
    lengths = sorted({row["n"] for row in rows})
    for measured, shown in PASSES.items():
        groups = by_method([row for row in rows if row["measured"] == measured])
        if not groups:
            continue
        for measure, (title, factor) in MEASURES.items():
            cells = [["attention", *(f"{n:,}" for n in lengths), "break-even"]]
            for method, group in groups.items():
                ratios = {} if method == "softmax" else ratios_to_softmax(groups, method, measure)
                told = [_cell(row, row.get(measure), factor, ratios.get(row["n"])) for row in group]
                cells.append([method, *told, crossings.get((measured, measure, method), "")])
            yield f"{shown}: {title}", cells


def _cell(row: Row, value: float | None, factor: float, ratio: float | None) -> str:
    if value is None:
        return row["stopped"]
    return number(value * factor) + ("" if ratio is None else f" ({ratio:.2f}×)")


def _conversions(conversions: list[Row]) -> Iterator[tuple[str, Cells]]:
    if not conversions:
        return
    cells = [["attention", "seconds", "parameters of feature maps"]]
    for row in conversions:
        times = row["seconds"]
        told = f"{statistics.median(times):.2f} ({min(times):.2f} .. {max(times):.2f})"
        cells.append([label(row), told, f"{row['parameters']:,}"])
    size = conversions[0]["model_parameters"] / 1e6
    yield f"Conversion on the CPU of {conversions[0]['model']}; {size:.1f} M parameters", cells


def terminal(rows: list[Row], conversions: list[Row]) -> str:
    lines = []
    for title, cells in [*tables(rows), *_conversions(conversions)]:
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += ["", title]
        for first, *rest in cells:
            padded = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
            lines.append("  ".join([f"  {first:<{widths[0]}}", *padded]).rstrip())
    return "\n".join([*lines, ""])


def markdown(rows: list[Row], facts: dict[str, Any]) -> str:
    lines = _header(rows, facts)
    for title, cells in [*tables(rows), *_conversions(facts["conversions"])]:
        head, *body = cells
        lines += ["", f"## {title}", "", line(head), "|---|" + "---:|" * (len(head) - 1)]
        lines += [line([f"`{name}`", *rest]) for name, *rest in body]
    return "\n".join([*lines, ""])


def _header(rows: list[Row], facts: dict[str, Any]) -> list[str]:
    settings, geometry = facts["settings"], Geometry(**facts["geometry"])
    numba = facts["versions"]["numba"]
    luna = f"numba {numba} (`luna` runs compiled)" if numba else "no numba (`luna` runs in torch)"
    noise = [row["slowest_seconds"] / row["seconds"] for row in rows if row.get("seconds")]
    return [
        "# Converted models against softmax, by length",
        "",
        *provenance(facts),
        f"- beside them: transformers {facts['versions']['transformers']}, {luna}",
        f"- model: {settings['geometry']}, random weights: {geometry.told}; batch "
        f"{settings['batch']}, float32, nothing padded, positions for every length",
        "- `softmax`: the model as it was, in torch's fused kernel, without dropout of its "
        "probabilities (with it there is no fused kernel on a CPU); the others: `luna.linearize` "
        "at its default options",
        "- inference: evaluation mode, no gradients; training step: forward, backward and AdamW, "
        "everything trainable",
        f"- times: the fastest call of {settings['repeats']} rounds over all models, in turn at "
        "each length; the slowest round took "
        f"{statistics.median(noise):.2f} times the fastest in the median, {max(noise):.2f} at most",
        "- memory: most bytes alive at once beyond parameters and optimiser, by the allocator",
        "- in brackets: the ratio to softmax; break-even: the length from which on the method "
        "costs less, between two measured ones on a line in the logarithms",
        f"- `> {settings['seconds']:g} s` or `> {settings['mib']:g} MiB` in a cell: not run, "
        "because one pass, carried forward from the last length by its FLOPs, would take more",
        "",
        "`lra bench convert` makes this file.",
    ]
