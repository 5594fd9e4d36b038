"""`lra compute table`: the cost of every attention on every task, as published, as its file ships
it, and at the setting that the solver finds, each compared with the budget.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import luna
from lra import data
from lra.base.disk import write_atomically
from lra.compute.budget import Budget, budget_of, cost_of, times
from lra.compute.count import Count, count_run, slot_flops
from lra.compute.solve import closest
from lra.settings.compose import Run, compose

FOLDER = Path("results/compute")
SETTINGS = ("published", "shipped", "solved")
LENGTHS = (1024, 2048, 4096, 16384)
HEAD_DIM = 32  # of model=small


@dataclass(frozen=True)
class CostRow:
    """One attention on one task at one setting."""

    task: str
    attention: str
    setting: str  # of SETTINGS
    options: dict[str, Any]  # the knobs, and what else differs between the settings
    count: Count
    ratios: dict[str, float]
    budget: Budget
    exempt: str | None

    @property
    def verdict(self) -> str:
        return self.budget.verdict(self.ratios)

    def cells(self) -> dict[str, Any]:
        """One line of the CSV."""
        slot = {f"attention_{k}": v for k, v in asdict(self.count.slot).items()}
        cells = {"task": self.task, "attention": self.attention, "setting": self.setting}
        cells |= {"options": _spell(self.options), "verdict": self.verdict}
        cells |= {f"{m}_ratio": f"{r:.4f}" for m, r in self.ratios.items()}
        return cells | asdict(self.count.total) | slot | {"exempt": self.exempt or ""}


def main(overrides: Sequence[str], *, write: bool) -> None:
    """Print the page; if asked, write it as Markdown, with all counts as CSV."""
    found = list(rows(overrides))
    page = markdown(found, overrides)
    print(page)
    if write:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name, content in (("table.md", page), ("table.csv", as_csv(found))):
            write_atomically(FOLDER / name, content.encode())
            print(f"written to {FOLDER / name}", file=sys.stderr)


def rows(
    overrides: Sequence[str],
    tasks: Sequence[str] | None = None,
    attentions: Sequence[str] | None = None,
) -> Iterator[CostRow]:
    """The rows of these tasks and attentions; of all by default."""
    for task in tasks or data.lra_tasks():
        budget = None
        for attention in attentions or luna.names():
            print(f"counting {task}/{attention}", file=sys.stderr)
            words = [f"task={task}", f"attention={attention}", *overrides, "compute=report"]
            shipped = compose(words)
            budget = budget or budget_of(shipped)
            yield from _rows(shipped, compose([*words, "attention.preset=published"]), budget)


def _rows(shipped: Run, published: Run, budget: Budget) -> Iterator[CostRow]:
    best = closest(shipped, budget)
    runs = {"published": published, "shipped": shipped}
    if best is not None:
        runs["solved"] = replace(shipped, attention=shipped.attention | best.options)
    # The knobs, and every other option in which the settings differ.
    shown = [
        key
        for key, value in published.attention.items()
        if key in shipped.compute.knobs or any(r.attention[key] != value for r in runs.values())
    ]
    for setting, run in runs.items():
        count = count_run(run)
        yield CostRow(
            task=run.task.name,
            attention=run.attention["name"],
            setting=setting,
            options={key: run.attention[key] for key in shown},
            count=count,
            ratios=budget.ratios(cost_of(run, count)),
            budget=budget,
            exempt=run.compute.exempt,
        )


def _spell(options: dict[str, Any]) -> str:
    return " ".join(f"{key}={'null' if v is None else v}" for key, v in options.items())


# ---------------------------------------------------------------------- the page

INTRODUCTION = """\
# Compute of every attention on every task

Made by `lra compute table{overrides} --write`; do not edit. `table.csv` has the same rows with all
counts.

* FLOPs are those of a forward pass on one example of full stored length: sums of products, a
  multiply-add being 2, counted on the network itself.
* The budget is {reference} on the same backbone, parameters ±{parameters:.0%}, FLOPs ±{flops:.0%}.
* *published* is the papers' setting, *shipped* what the attention's file sets by default, *solved*
  the setting of its knobs closest to the budget. × is the ratio to the budget.
* A method that no setting brings within the budget is exempt by declaration: its runs start, and
  their records say what they cost.
"""


def markdown(found: Sequence[CostRow], overrides: Sequence[str]) -> str:
    run = compose([*overrides, "compute=report"])
    tolerance = asdict(run.compute.tolerance)
    words = f" {' '.join(overrides)}" if overrides else ""
    reference = run.compute.reference
    if isinstance(reference, str):
        reference = f"`{reference}` at its published options"
    page = [INTRODUCTION.format(overrides=words, reference=reference, **tolerance)]
    tasks = dict.fromkeys(row.task for row in found)
    page += [_section(task, [row for row in found if row.task == task]) for task in tasks]
    return "\n".join([*page, _heads()])


def _section(task: str, found: Sequence[CostRow]) -> str:
    cost = found[0].budget.cost
    limits = [f"{cost.parameters:,} parameters"] if cost.parameters else []
    limits += [f"{cost.flops / 1e9:.3f} GFLOPs"] if cost.flops else []
    lines = [
        f"## {task}",
        "",
        f"The budget is {' and '.join(limits)}.",
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


def _setting(row: CostRow | None) -> list[str]:
    if row is None:
        return ["no knob", "", "", ""]
    verdict = (
        row.verdict if not row.exempt or row.verdict == "matched" else f"exempt, {row.verdict}"
    )
    sizes = [times(row.ratios[m]) if m in row.ratios else "" for m in ("parameters", "flops")]
    return [_spell(row.options) or "-", *sizes, verdict]


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


@cache
def head_flops(name: str, n: int) -> int:
    """Forward FLOPs of one head on n tokens, published options and profile."""
    import torch

    with torch.device("meta"):
        slot = luna.build(name, n_heads=1, head_dim=HEAD_DIM, max_len=n, profile="published")
    return slot_flops(slot)


def as_csv(found: Sequence[CostRow]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, fieldnames=list(found[0].cells()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.cells() for row in found)
    return file.getvalue()
