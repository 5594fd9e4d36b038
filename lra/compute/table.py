"""`lra compute table`: every attention on every task, at its published setting, at the one that its
file ships, and at the one that the solver finds, each held to the budget.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import luna
from lra import data
from lra.compose import Run, compose
from lra.compute.budget import Budget, budget_of, cost_of, times
from lra.compute.count import Count, count_run
from lra.compute.solve import closest, slot_flops
from lra.disk import write_atomically

FOLDER = Path("results/compute")
SETTINGS = ("published", "shipped", "solved")
LENGTHS = (1024, 2048, 4096, 16384)
HEAD_DIM = 32  # of model=small


@dataclass(frozen=True)
class Row:
    """One attention on one task at one setting."""

    task: str
    attention: str
    setting: str  # of SETTINGS
    options: dict[str, Any]  # those that differ from the published ones
    count: Count
    ratios: dict[str, float]
    verdict: str
    exempt: str | None

    def cells(self) -> dict[str, Any]:
        """As a line of the CSV."""
        slot = {f"attention_{k}": v for k, v in asdict(self.count.slot).items()}
        told = {"task": self.task, "attention": self.attention, "setting": self.setting}
        told |= {"options": _spell(self.options), "verdict": self.verdict}
        told |= {f"{m}_ratio": f"{r:.4f}" for m, r in self.ratios.items()}
        return told | asdict(self.count.total) | slot | {"exempt": self.exempt or ""}


def main(overrides: Sequence[str], *, write: bool) -> None:
    """Print the page, and write it as Markdown with its numbers as CSV if asked."""
    found = list(rows(overrides))
    page = markdown(found, overrides)
    print(page)
    if write:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name, content in (("table.md", page), ("table.csv", as_csv(found))):
            write_atomically(FOLDER / name, content.encode())
            print(f"written to {FOLDER / name}", file=sys.stderr)


def rows(overrides: Sequence[str], tasks: Sequence[str] | None = None) -> Iterator[Row]:
    for task in tasks or data.names():
        budget = None
        for attention in luna.names():
            print(f"counting {task}/{attention}", file=sys.stderr)
            words = [f"task={task}", f"attention={attention}", *overrides, "compute=report"]
            shipped = compose(words)
            budget = budget or budget_of(shipped)
            published = compose([*words, "attention.preset=published"])
            best = closest(shipped, budget)
            runs = {"published": published, "shipped": shipped}
            if best is not None:
                runs["solved"] = replace(shipped, attention=shipped.attention | best.options)
            for setting, run in runs.items():
                yield _row(setting, run, budget)


def _row(setting: str, run: Run, budget: Budget) -> Row:
    name, count = run.attention["name"], count_run(run)
    published = {key: p.default for key, p in luna.options(name).items()}
    options = {
        k: v
        for k, v in run.attention.items()
        if k in published and v != published[k] and (v or published[k])
    }
    ratios = budget.ratios(cost_of(run, count))
    exempt = run.compute.exempt
    return Row(run.task.name, name, setting, options, count, ratios, budget.verdict(ratios), exempt)


def _spell(options: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in options.items())


# ---------------------------------------------------------------------- the page

INTRODUCTION = """\
# Compute of every attention on every task

Made by `lra compute table{overrides} --write`; do not edit. `table.csv` has the same rows with all
counts.

* FLOPs are those of a forward pass on one example of full stored length: sums of products, a
  multiply-add being 2, counted on the network itself. Element-wise work is in the CSV, in elements.
* The budget is {reference} on the same backbone, parameters ±{parameters:.0%}, FLOPs ±{flops:.0%}.
* *published* is the papers' setting, *shipped* what the attention's file sets by default, *solved*
  the setting of its knobs closest to the budget. × is the ratio to the budget.
* A method that no setting brings within the budget is exempt by declaration: its runs start, and
  their records say what they cost.
"""


def markdown(found: Sequence[Row], overrides: Sequence[str]) -> str:
    run = compose([*overrides, "compute=report"])
    tolerance = asdict(run.compute.tolerance)
    words = f" {' '.join(overrides)}" if overrides else ""
    reference = f"`{run.compute.reference}` at its published options"
    page = [INTRODUCTION.format(overrides=words, reference=reference, **tolerance)]
    tasks = dict.fromkeys(row.task for row in found)
    page += [_section(task, [row for row in found if row.task == task]) for task in tasks]
    return "\n".join([*page, _heads()])


def _section(task: str, found: Sequence[Row]) -> str:
    reference = next(row for row in found if row.attention == "luna" and row.setting == "published")
    count = reference.count
    lines = [
        f"## {task}",
        "",
        f"`luna` has {count.parameters:,} parameters and {count.flops / 1e9:.3f} GFLOPs.",
        "",
        "| attention | published | parameters | FLOPs | verdict "
        "| shipped | parameters | FLOPs | verdict | solved | parameters | FLOPs | verdict |",
        "|---|" + "---|---:|---:|---|" * 3,
    ]
    for attention in dict.fromkeys(row.attention for row in found):
        settings = {row.setting: row for row in found if row.attention == attention}
        cells = [f"`{attention}`"]
        for setting in SETTINGS:
            cells += _setting(settings.get(setting))
        lines.append(f"| {' | '.join(cells)} |")
    notes = {row.attention: row.exempt for row in found if row.exempt}
    lines += ["", *(f"* `{name}` is exempt: {why}." for name, why in notes.items()), ""]
    return "\n".join(lines)


def _setting(row: Row | None) -> list[str]:
    if row is None:
        return ["no knob", "", "", ""]
    verdict = (
        row.verdict if not row.exempt or row.verdict == "matched" else f"exempt, {row.verdict}"
    )
    sizes = [times(row.ratios[m]) for m in ("parameters", "flops")]
    return [_spell(row.options) or "as published", *sizes, verdict]


def _heads() -> str:
    lines = [
        "## One head",
        "",
        f"MFLOPs of one head of width {HEAD_DIM} at the published options, without projections.",
        "",
        f"| attention | {' | '.join(f'n = {n:,}' for n in LENGTHS)} |",
        "|---|" + "---:|" * len(LENGTHS),
    ]
    for name in luna.names():
        cells = [f"{head_flops(name, n) / 1e6:,.1f}" for n in LENGTHS]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def head_flops(name: str, n: int) -> int:
    """Forward FLOPs of one head on n tokens, published options and profile."""
    import torch

    with torch.device("meta"):
        slot = luna.build(name, n_heads=1, head_dim=HEAD_DIM, max_len=n, profile="published")
    return slot_flops(slot)


def as_csv(found: Sequence[Row]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, fieldnames=list(found[0].cells()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.cells() for row in found)
    return file.getvalue()
