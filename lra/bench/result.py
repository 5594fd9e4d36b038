"""The rows of a benchmark, the arithmetic on them, their page and their files."""

from __future__ import annotations

import json
import os
import re
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch

from lra.base.config import readable
from lra.base.disk import disk_errors, write_atomically
from lra.report.render import grid
from lra.runs import environment

ANY = "any"  # every measure
CALLS = {"train": "forward + backward", "token": "one more token"}
KINDS = {"seconds": ("time, ms", 1e3), "bytes": ("memory, MiB", 2**-20),
         "share": ("share of the roofline, %", 100.0)}  # fmt: skip


@dataclass(kw_only=True)
class BenchRow:
    """The values of one measure of one case at one length."""

    group: str  # cases of a group are compared
    case: str
    n: int
    measure: str  # <call>_<kind>; ANY in the row that says why a case stopped at this length
    values: list[float] = field(default_factory=list)  # one per round, or a single one
    stopped: str | None = None


@dataclass(kw_only=True)
class BenchResult:
    """The contents of a benchmark's file."""

    facts: dict[str, Any]  # what was measured, where and when
    rows: list[BenchRow]

    def save(self, stem: Path) -> list[Path]:
        """Write the numbers, one line per row, and the page."""
        facts = json.dumps(self.facts, indent=2).removesuffix("\n}")
        rows = ",\n".join(f"    {json.dumps(asdict(row))}" for row in self.rows)
        texts = {".json": f'{facts},\n  "rows": [\n{rows}\n  ]\n}}\n', ".md": page(self)}
        paths = [stem.with_name(stem.name + ending) for ending in texts]
        with disk_errors(stem.parent):
            stem.parent.mkdir(parents=True, exist_ok=True)
            for path, text in zip(paths, texts.values(), strict=True):
                write_atomically(path, text.encode())
        return paths

    @classmethod
    def load(cls, path: Path) -> BenchResult:
        with readable(path, "give the numbers of `lra bench` (.json)"):
            facts = json.loads(path.read_text(encoding="utf-8"))
            return cls(rows=[BenchRow(**row) for row in facts.pop("rows")], facts=facts)

    def tables(self) -> Iterator[tuple[str, str, dict[str, dict[int, BenchRow]]]]:
        """Groups, measures and their rows by case and length, or those that say why there is none;
        cases that reach the longest lengths first, then cheaper ones."""
        pairs = dict.fromkeys((row.group, row.measure) for row in self.rows if row.measure != ANY)
        for group, measure in sorted(pairs, key=lambda pair: "seconds" not in pair[1]):
            rows: dict[str, dict[int, BenchRow]] = {}
            for row in sorted(self.rows, key=lambda row: (row.n, row.measure != ANY)):
                if row.group == group and row.measure in (measure, ANY):
                    rows.setdefault(row.case, {})[row.n] = row
            costs = {case: [median(row.values) for row in by_length.values() if row.values]
                     for case, by_length in rows.items()}  # fmt: skip
            order = sorted(rows, key=lambda case: (-len(costs[case]), costs[case][-1:]))
            yield group, measure, {case: rows[case] for case in order}


def ratio_by_round(row: BenchRow, base: BenchRow) -> list[float]:
    """Divide within each round, because a machine that is busy slows both."""
    return [a / b for a, b in zip(row.values, base.values, strict=False)]


def with_range(values: Sequence[float], factor: float = 1.0) -> str:
    """Write `median (least–largest)`, or a single value, in three digits."""
    texts = [f"{float(f'{f(values) * factor:.3g}'):,.7g}" for f in (median, min, max)]
    return f"{texts[0]} ({texts[1]}–{texts[2]})" if len(values) > 1 else texts[0]


def title_of(measure: str) -> tuple[str, float]:
    """The title of a measure with its unit, and the factor from its values to that unit."""
    call, _, kind = measure.rpartition("_")
    title, factor = KINDS.get(kind, (kind, 1.0))
    return f"{CALLS.get(call, call)} {title}".strip(), factor


def page(result: BenchResult) -> str:
    """Write notes and a table per measure."""
    facts = result.facts
    failed = {row.case: row.stopped for row in result.rows if row.stopped and row.stopped[0] != ">"}
    notes = [*facts["notes"], *map(": ".join, failed.items()), f"made by `{facts['benchmark']}`"]
    parts = [f"# {facts['title']}", "\n".join(f"- {note}" for note in notes)]
    for group, measure, rows in result.tables():
        title, factor = title_of(measure)
        parts += [f"## {group}, {title}", _table(rows, factor)]
        if measure.endswith("seconds") and (base := rows.get(facts.get("base", ""))):
            title = f"{title.removesuffix(', ms')} divided by that of {facts['base']}"
            ratios = {case: {n: replace(row, values=ratio_by_round(row, base[n]))
                             for n, row in by_length.items() if n in base}
                      for case, by_length in rows.items() if by_length is not base}  # fmt: skip
            parts += [f"## {group}, {title}", _table(ratios)]
    return "\n\n".join(parts) + "\n"


def _table(rows: dict[str, dict[int, BenchRow]], factor: float = 1.0) -> str:
    texts = {case: {n: _text(row, factor) for n, row in by_length.items()}
             for case, by_length in rows.items()}  # fmt: skip
    frame = pd.DataFrame.from_dict(texts, orient="index").sort_index(axis=1).fillna("")
    return grid(frame.rename(columns="{:,}".format).rename_axis("n"))


def _text(row: BenchRow, factor: float) -> str:
    if row.values:
        return with_range(row.values, factor)
    reason = row.stopped or ""
    return reason if reason[:1] in (">", "") else "failed"


def facts_of(options: Namespace, **about: Any) -> dict[str, Any]:
    machine = environment.machine(torch.device(options.device))
    machine |= {"threads": options.threads, "load": round(os.getloadavg()[0], 1)}
    versions, date = environment.versions(), time.strftime("%Y-%m-%d")
    about["notes"] = [
        "machine: {device}, {threads} torch thread(s), {system}, load {load}".format(**machine),
        f"versions: {', '.join(' '.join(item) for item in versions.items())}, {date}",
        f"times: median (least–largest) of {options.rounds} rounds over all cases; memory: the "
        "peak of one call beyond what was in use before it",
        *about["notes"],
    ]
    settings = {k: v for k, v in vars(options).items() if isinstance(v, int | float | str | list)}
    command = " ".join(["lra bench", options.what, *getattr(options, "overrides", ())])
    return {"benchmark": command, **about, "settings": settings, "machine": machine,
            "versions": versions, "git": environment.git(), "date": date}  # fmt: skip


def stem_of(name: str, facts: dict[str, Any]) -> str:
    """The name of the files: benchmark, device, threads and version of torch."""
    device = re.sub(r"[^a-z0-9]+", "-", facts["machine"]["device"].lower()).strip("-")
    torch_version = facts["versions"]["torch"].partition("+")[0]
    return f"{name}-{device}-{facts['machine']['threads']}thread-torch{torch_version}"
