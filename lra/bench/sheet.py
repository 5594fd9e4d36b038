"""The files of a benchmark: its numbers (.json, .csv) and a page of tables (.md)."""

from __future__ import annotations

import csv
import importlib.metadata
import importlib.util
import os
import re
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lra.base.disk import disk_errors
from lra.bench.rows import (
    MEASURES,
    BenchResult,
    BenchRow,
    Selection,
    Summary,
    fastest,
    ratios,
)
from lra.bench.worker import BenchCase, BenchRules
from lra.data.parallel import cores
from lra.runs import environment

PACKAGES = ("numba", "transformers")  # reported besides those that every run reports

SUMMARIES: dict[str, Callable[..., float]]
SUMMARIES = {"fastest": min, "median": statistics.median, "slowest": max}


class SheetTable(NamedTuple):
    title: str
    head: Sequence[str]
    lines: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """With padded cells, so that it can be read in a terminal too."""
        widths = [max(3, *map(len, column)) for column in zip(self.head, *self.lines, strict=True)]
        rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
        return "\n".join(_line(cells, widths) for cells in (self.head, rule, *self.lines))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = cells
    padded = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
    return f"| {' | '.join([first.ljust(widths[0]), *padded])} |"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What is measured, how, and the text of its page."""

    stem: str  # of its files; the machine is added
    title: str
    notes: Sequence[str]
    cases: Sequence[BenchCase]
    rules: BenchRules
    settings: dict[str, Any] = field(default_factory=dict)  # besides those of the command line


# ---------------------------------------------------------------------- cells


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def cell(row: BenchRow | None, summary: Summary = fastest) -> str:
    """The number in the unit of its measure, or the reason why there is none."""
    if row is None:
        return "–"
    return number(summary(row) * MEASURES[row.measure].factor) if row.values else str(row.stopped)


def with_range(values: Sequence[float], form: str) -> str:
    """`median (least .. largest)`, or a single value."""
    if len(values) < 2:
        return f"{values[0]:{form}}" if values else "–"
    middle, least, largest = statistics.median(values), min(values), max(values)
    return f"{middle:{form}} ({least:{form}} .. {largest:{form}})"


def rounds_of(row: BenchRow, form: str, factor: float = 1.0) -> str:
    """Median and range of the rounds, or the reason why there are none."""
    values = [value * factor for value in row.values]
    return with_range(values, form) if values else str(row.stopped)


# ---------------------------------------------------------------------- tables

Column = tuple[str, Callable[[Selection, str], str]]  # its head; its cell for a case


def by_length(
    result: BenchResult,
    group: str,
    measure: str,
    *,
    summary: Summary = fastest,
    base: str | None = None,
    last: Column | None = None,
    cheapest_first: bool = False,
) -> SheetTable:
    """One measure: a line per case, a column per length. With `base`, the ratio to that case stands
    in brackets."""
    found = result.select(group, measure)
    if cheapest_first:
        found = dict(sorted(found.items(), key=lambda item: _reach_and_cost(item[1])))
    lengths = sorted({n for rows in found.values() for n in rows})
    lines = []
    for case, rows in found.items():
        to_base = ratios(found, case, base, summary) if base and case != base else {}
        cells = [
            cell(rows.get(n), summary) + (f" ({to_base[n]:.2f}×)" if n in to_base else "")
            for n in lengths
        ]
        lines.append([f"`{case}`", *cells, *([last[1](found, case)] if last else [])])
    head = [group, *(f"{n:,}" for n in lengths), *([last[0]] if last else [])]
    title, unit, _ = MEASURES[measure]
    return SheetTable(f"{group.capitalize()}: {title}, {unit}", head, lines)


def _reach_and_cost(rows: dict[int, BenchRow]) -> tuple[int, float]:
    """A sort key: cases that reached more lengths first, then cheaper ones."""
    costs = [fastest(row) for row in rows.values() if row.values]
    return -len(costs), costs[-1] if costs else 0.0


# ---------------------------------------------------------------------- page and files


def facts_of(benchmark: Benchmark, command: str, options: dict[str, Any]) -> dict[str, Any]:
    """The contents of a file besides its rows: what was measured, how, where and when."""
    rules = benchmark.rules
    machine = environment.machine(torch.device(rules.device))
    machine |= {"threads": rules.threads} if rules.device == "cpu" else {}
    others = {p: importlib.metadata.version(p) for p in PACKAGES if importlib.util.find_spec(p)}
    return {
        "benchmark": command,
        "title": benchmark.title,
        "notes": list(benchmark.notes),
        "settings": options | benchmark.settings,
        "machine": machine | {"cores": cores(), "load": round(os.getloadavg()[0], 1)},
        "versions": environment.versions() | others,
        "git": environment.git(),
        "date": time.strftime("%Y-%m-%d"),
        "cases": [{"group": c.group, "case": c.name, **c.facts} for c in benchmark.cases],
    }


def stem_of(benchmark: Benchmark, facts: dict[str, Any], out: Path) -> Path:
    """The common name of the files: benchmark, device, threads (of a CPU) and version of torch."""
    machine, version = facts["machine"], facts["versions"]["torch"].partition("+")[0]
    device = re.sub(r"[^a-z0-9]+", "-", machine["device"].lower()).strip("-")
    threads = f"-{machine['threads']}thread" if machine["kind"] == "cpu" else ""
    return out / f"{benchmark.stem}-{device}{threads}-torch{version}"


def page(result: BenchResult, tables: Iterable[SheetTable]) -> str:
    facts = result.facts
    bullets = [f"- {note}" for note in [*_provenance(result), *facts["notes"]]]
    lines = [f"# {facts['title']}", "", *bullets, "", f"`{facts['benchmark']}` makes this file."]
    for table in tables:
        lines += ["", f"## {table.title}", "", table.markdown()]
    return "\n".join([*lines, ""])


def _provenance(result: BenchResult) -> Iterable[str]:
    """The first lines of every page: machine, versions, noise and limits."""
    facts = result.facts
    machine, versions, git, settings = (
        facts[key] for key in ("machine", "versions", "git", "settings")
    )
    threads = f", {machine['threads']} torch thread(s)" if machine["kind"] == "cpu" else ""
    load = "load" in machine and f"; {machine['cores']} cores, load before {machine['load']:g}"
    yield f"machine: {machine['device']}{threads}, {machine['system']}{load or ''}"
    revision = git["revision"][:10] if git["revision"] else "no checkout"
    revision += " + changes" if git["dirty"] else ""
    shown = ("torch", "python", "numpy", *PACKAGES)
    listed = ", ".join(f"{name} {versions[name]}" for name in shown if versions.get(name))
    yield f"versions: {listed}, luna-lra {versions['luna-lra']} ({revision}), {facts['date']}"
    times = [row.values for row in result.rows if row.measure.endswith("seconds")]
    noise = [max(values) / min(values) for values in times if len(values) > 1]
    if noise and settings["rounds"] > 1:
        middle, most = statistics.median(noise), max(noise)
        yield (
            f"noise: slowest / fastest of {settings['rounds']} rounds: {middle:.2f} in the median "
            f"of all times, at most {most:.2f}"
        )
    if "mib" in settings:
        yield (
            f"`> {settings['seconds']:g} s` or `> {settings['mib']:g} MiB` in a cell: not run, "
            "because one call would take more (estimated from the last length by FLOPs)"
        )


def write(result: BenchResult, text: str, stem: Path) -> list[Path]:
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("json", "csv", "md")]
    with disk_errors(stem.parent):
        stem.parent.mkdir(parents=True, exist_ok=True)
        result.save(paths[0])
        with paths[1].open("w", encoding="utf-8", newline="") as file:
            lines = csv.writer(file, lineterminator="\n")
            lines.writerow(["group", "case", "n", "measure", *SUMMARIES, "stopped"])
            for row in result.rows:
                numbers = [f"{f(row.values):.6g}" if row.values else "" for f in SUMMARIES.values()]
                lines.writerow([row.group, row.case, row.n, row.measure, *numbers, row.stopped])
        paths[2].write_text(text, encoding="utf-8")
    return paths
