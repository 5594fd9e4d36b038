"""The rows of a benchmark, the arithmetic on them, their page and their files."""

from __future__ import annotations

import json
import os
import re
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch

from lra.base.disk import disk_errors, write_atomically
from lra.base.errors import readable
from lra.report.render import grid
from lra.runs import environment

ANY = "any"  # every measure
CALLS = {"train": "forward + backward", "token": "one more token"}
KINDS = {
    "seconds": ("time, ms", 1e3),
    "bytes": ("memory, MiB", 2**-20),
    "share": ("share of the roofline, %", 100.0),
}


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

    def tables(self) -> Iterator[tuple[str, str, pd.DataFrame]]:
        """Groups, measures and the values of every length and round, a column per case, also if it
        has none; cases that reach the longest lengths first, then cheaper ones."""
        rows = pd.DataFrame(self.rows)
        pairs = dict.fromkeys((row.group, row.measure) for row in self.rows if row.measure != ANY)
        for group, measure in sorted(pairs, key=lambda pair: "seconds" not in pair[1]):
            part = rows[(rows["group"] == group) & rows["measure"].isin([measure, ANY])]
            part = part.explode("values")
            part["round"] = part.groupby(["case", "n"]).cumcount()
            values = part.pivot(index=["n", "round"], columns="case", values="values").astype(float)
            costs = {
                case: [*values[case].groupby("n").median().dropna()]
                for case in part["case"].unique()
            }
            order = sorted(costs, key=lambda case: (-len(costs[case]), costs[case][-1:]))
            yield group, measure, values[order]


def with_range(values: Sequence[float]) -> str:
    """Write `median (least–largest)`, or a single value, in three digits."""
    texts = [f"{float(f'{f(values):.3g}'):,.7g}" for f in (median, min, max)]
    return f"{texts[0]} ({texts[1]}–{texts[2]})" if len(values) > 1 else texts[0]


def title_of(measure: str) -> tuple[str, float]:
    """The title of a measure with its unit, and the factor from its values to that unit."""
    call, _, kind = measure.rpartition("_")
    title, factor = KINDS.get(kind, (kind, 1.0))
    return f"{CALLS.get(call, call)} {title}".strip(), factor


def page(result: BenchResult) -> str:
    """Write notes and tables. Ratios are taken within a round: a busy machine slows both."""
    facts, base = result.facts, result.facts.get("base")
    stopped = {(row.case, row.n): row.stopped for row in result.rows if row.stopped}
    failed = {case: reason for (case, _), reason in stopped.items() if reason[0] != ">"}
    notes = [*facts["notes"], *map(": ".join, failed.items()), f"made by `{facts['benchmark']}`"]
    parts = [f"# {facts['title']}", "\n".join(f"- {note}" for note in notes)]
    for group, measure, values in result.tables():
        title, factor = title_of(measure)
        parts += [f"## {group}, {title}", _table(values * factor, stopped)]
        if measure.endswith("seconds") and base in values:
            title = f"{title.removesuffix(', ms')} divided by that of {base}"
            ratios = values.drop(columns=base).div(values[base], axis=0)
            parts += [f"## {group}, {title}", _table(ratios, stopped)]
    return "\n\n".join(parts) + "\n"


def _table(values: pd.DataFrame, stopped: dict[tuple[str, int], str]) -> str:
    def text(case: str, n: int, rounds: Sequence[float]) -> str:
        reason = stopped.get((case, n), "")
        return with_range(rounds) if rounds else reason if reason[:1] in (">", "") else "failed"

    texts = {
        case: {
            f"{n:,}": text(case, n, [*rounds.dropna()]) for n, rounds in values[case].groupby("n")
        }
        for case in values
    }
    return grid(pd.DataFrame.from_dict(texts, orient="index").rename_axis("n"))


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
    return {
        "benchmark": command,
        **about,
        "settings": settings,
        "machine": machine,
        "versions": versions,
        "git": environment.git(),
        "date": date,
    }


def stem_of(name: str, facts: dict[str, Any]) -> str:
    """The name of the files: benchmark, device, threads and version of torch."""
    device = re.sub(r"[^a-z0-9]+", "-", facts["machine"]["device"].lower()).strip("-")
    torch_version = facts["versions"]["torch"].partition("+")[0]
    return f"{name}-{device}-{facts['machine']['threads']}thread-torch{torch_version}"
