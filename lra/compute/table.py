"""`lra compute`: the cost of one run, part by part. `lra compute table`: that of every attention on
every task, as published, as its file ships it, and at the setting that the solver finds, each
compared with the budget.
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

from rich import box
from rich.console import Console
from rich.table import Table

import luna
from lra import data
from lra.base.config import Gate
from lra.base.disk import write_atomically
from lra.compute.budget import Budget, budget_of, cost_of, times
from lra.compute.count import Count, PartCount, count_run, slot_flops
from lra.compute.gate import BudgetCheck, check_budget
from lra.compute.solve import closest
from lra.settings.compose import Run, compose

FOLDER = Path("results/compute")
SETTINGS = ("published", "shipped", "solved")
LENGTHS = (1024, 2048, 4096, 16384)
HEAD_DIM = 32  # of model=small


COLUMNS = {  # of PartCount
    "parameters": "parameters",
    "buffers": "buffers",
    "flops": "MFLOPs",
    "training_flops": "training",
    "executed_flops": "executed",
}


def show_run(run: Run) -> None:
    """Print the table, also for a run that its budget would refuse."""
    mode = Gate.off if run.compute.mode is Gate.off else Gate.report
    check = check_budget(replace(run, compute=replace(run.compute, mode=mode)))
    Console(highlight=False).print(_table_of_parts(check))
    print(check.describe())
    print(saving(check.count.total))


def _table_of_parts(check: BudgetCheck) -> Table:
    run = check.run
    options = " ".join(f"{k}={v}" for k, v in run.attention.items() if k != "name")
    table = Table(
        "part",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
        title=f"{run.task.name}/{run.attention['name']} {options}, model {run.model.name}, "
        f"protocol {run.protocol.name}",
        caption="Per example of full length. MFLOPs: products of the forward pass, a multiply-add "
        "being 2. Training: forward and backward. Executed: MFLOPs of the code, which may evaluate "
        "a definition in another way.",
        title_justify="left",
        caption_justify="left",
    )
    for title in COLUMNS.values():
        table.add_column(title, justify="right")
    parts = {name: part for name, part in check.count.parts.items() if part != PartCount()}
    for name, part in (parts | {"total": check.count.total}).items():
        if name == "total":
            table.add_section()
        values = {key: getattr(part, key) for key in COLUMNS}
        table.add_row(name, *(f"{v / 1e6:,.1f}" if "flops" in k else f"{v:,}"
                              for k, v in values.items()))  # fmt: skip
    return table


def saving(total: PartCount) -> str:
    share = total.executed_flops / total.flops - 1 if total.flops else 0.0
    if abs(share) < 5e-4:
        return "executed as counted"
    less = "fewer" if share < 0 else "more"
    return f"the code executes {abs(share):.1%} {less} FLOPs than are counted"


# ---------------------------------------------------------------------- all methods on all tasks


@dataclass(frozen=True)
class CostRow:
    run: Run
    setting: str  # of SETTINGS
    options: dict[str, Any]  # the knobs, and what else differs between the settings
    count: Count
    budget: Budget

    @property
    def attention(self) -> str:
        return str(self.run.attention["name"])

    @property
    def ratios(self) -> dict[str, float]:
        return self.budget.ratios(cost_of(self.run, self.count))

    @property
    def verdict(self) -> str:
        return self.budget.verdict(self.ratios)

    def cells(self) -> dict[str, Any]:
        slot = {f"attention_{k}": v for k, v in asdict(self.count.slot).items()}
        cells = {"task": self.run.task.name, "attention": self.attention, "setting": self.setting}
        cells |= {"options": _spell(self.options), "verdict": self.verdict}
        cells |= {f"{m}_ratio": f"{r:.4f}" for m, r in self.ratios.items()}
        return cells | asdict(self.count.total) | slot | {"exempt": self.run.compute.exempt or ""}


def main(overrides: Sequence[str], *, write: bool) -> None:
    table = list(rows(overrides))
    page = markdown(table, overrides)
    print(page)
    if write:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name, content in (("table.md", page), ("table.csv", as_csv(table))):
            write_atomically(FOLDER / name, content.encode())
            print(f"written to {FOLDER / name}", file=sys.stderr)


def rows(
    overrides: Sequence[str],
    tasks: Sequence[str] | None = None,
    attentions: Sequence[str] | None = None,
) -> Iterator[CostRow]:
    """Yield the rows of these tasks and attentions; of all by default."""
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
        options = {key: run.attention[key] for key in shown}
        yield CostRow(run, setting, options, count_run(run), budget)


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


def markdown(table: Sequence[CostRow], overrides: Sequence[str]) -> str:
    run = compose([*overrides, "compute=report"])
    tolerance = asdict(run.compute.tolerance)
    words = f" {' '.join(overrides)}" if overrides else ""
    reference = run.compute.reference
    if isinstance(reference, str):
        reference = f"`{reference}` at its published options"
    page = [INTRODUCTION.format(overrides=words, reference=reference, **tolerance)]
    tasks = dict.fromkeys(row.run.task.name for row in table)
    page += [_section(t, [row for row in table if row.run.task.name == t]) for t in tasks]
    return "\n".join([*page, _heads()])


def _section(task: str, table: Sequence[CostRow]) -> str:
    cost = table[0].budget.cost
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
    for attention in dict.fromkeys(row.attention for row in table):
        settings = {row.setting: row for row in table if row.attention == attention}
        cells = [f"`{attention}`"]
        for setting in SETTINGS:
            cells += _setting(settings.get(setting))
        lines.append(f"| {' | '.join(cells)} |")
    notes = {row.attention: row.run.compute.exempt for row in table if row.run.compute.exempt}
    lines += ["", *(f"* `{name}` is exempt: {why}." for name, why in notes.items()), ""]
    return "\n".join(lines)


def _setting(row: CostRow | None) -> list[str]:
    if row is None:
        return ["no knob", "", "", ""]
    exempt = row.run.compute.exempt and row.verdict != "matched"
    verdict = f"exempt, {row.verdict}" if exempt else row.verdict
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
    import torch

    with torch.device("meta"):
        slot = luna.build(name, n_heads=1, head_dim=HEAD_DIM, max_len=n, profile="published")
    return slot_flops(slot)


def as_csv(table: Sequence[CostRow]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, fieldnames=list(table[0].cells()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.cells() for row in table)
    return file.getvalue()
