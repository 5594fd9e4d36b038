"""`lra compute`: the cost of one run, part by part. `lra compute table`: that of every attention on
every task, as published, as its file ships it, and at the setting that the solver finds, each
compared with the budget.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import luna
from lra import data
from lra.base.config import Gate
from lra.base.disk import write_atomically
from lra.compute.budget import times
from lra.compute.count import PartCount, slot_flops
from lra.compute.gate import SIZES, BudgetCheck, check_budget
from lra.compute.solve import closest
from lra.settings.compose import Run, compose

FOLDER = Path("results/compute")
SETTINGS = ("published", "shipped", "solved")
LENGTHS = (1024, 2048, 4096, 16384)
HEAD_DIM = 32  # of model=small
CAPTION = """\
Per example of full length. MFLOPs: products of the forward pass, a multiply-add being 2.
Executed: MFLOPs of the code, which may evaluate a definition in another way."""


def show_run(run: Run) -> None:
    """Print the cost of each part, also for a run that its budget would refuse."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    mode = Gate.off if run.compute.mode is Gate.off else Gate.report
    check = check_budget(replace(run, compute=replace(run.compute, mode=mode)))
    titles = ("part", "parameters", "buffers", "MFLOPs", "executed")
    table = Table(*titles, box=box.SIMPLE_HEAD, pad_edge=False, caption=CAPTION)
    for column in table.columns[1:]:
        column.justify = "right"
    parts = {name: part for name, part in check.count.parts.items() if part != PartCount()}
    for name, part in (parts | {"total": check.count}).items():
        millions = [f"{number / 1e6:,.1f}" for number in (part.flops, part.executed_flops)]
        table.add_row(name, f"{part.parameters:,}", f"{part.buffers:,}", *millions)
    print(f"{run.task.name}: {_spell(check.run.attention)}")
    Console(highlight=False).print(table)
    print(f"{check.count.training_flops / 1e6:,.1f} MFLOPs forward and backward")
    print(check.describe())


# ---------------------------------------------------------------------- all methods on all tasks


@dataclass(frozen=True)
class CostRow:
    setting: str  # of SETTINGS
    options: dict[str, Any]  # the knobs, and what else differs between the settings
    check: BudgetCheck

    @property
    def key(self) -> tuple[str, str, str]:
        run = self.check.run
        return run.task.name, run.attention["name"], self.setting

    def cells(self) -> list[str]:
        """List the cells of the page."""
        check, ratios = self.check, self.check.ratios
        exempt = "exempt, " if check.run.compute.exempt and check.verdict != "matched" else ""
        sizes = [times(ratios[m]) if m in ratios else "" for m in SIZES]
        return [_spell(self.options) or "-", *sizes, f"{exempt}{check.verdict}"]

    def numbers(self) -> dict[str, Any]:
        """List the cells of the CSV."""
        run, count = self.check.run, self.check.count
        facts = dict(zip(("task", "attention", "setting"), self.key, strict=True))
        facts |= {"options": _spell(self.options), "verdict": str(self.check.verdict)}
        facts |= {f"{m}_ratio": f"{r:.4f}" for m, r in self.check.ratios.items()}
        sizes = {key: number for key, number in vars(count).items() if key != "parts"}
        sizes |= {f"attention_{size}": number for size, number in vars(count.slot).items()}
        return facts | sizes | {"exempt": run.compute.exempt or ""}


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
        for attention in attentions or luna.names():
            print(f"counting {task}/{attention}", file=sys.stderr)
            words = [f"task={task}", f"attention={attention}", *overrides, "compute=report"]
            yield from _rows(compose([*words, "attention.preset=published"]), compose(words))


def _rows(published: Run, shipped: Run) -> Iterator[CostRow]:
    checks = {"published": check_budget(published), "shipped": check_budget(shipped)}
    budget = checks["shipped"].budget
    if budget and (best := closest(shipped, budget)):
        attention = shipped.attention | best.options
        checks["solved"] = check_budget(replace(shipped, attention=attention))
    # The knobs, and every other option in which the settings differ.
    shown = [
        key
        for key, value in published.attention.items()
        if key in shipped.compute.knobs
        or any(check.run.attention[key] != value for check in checks.values())
    ]
    for setting, check in checks.items():
        yield CostRow(setting, {key: check.run.attention[key] for key in shown}, check)


def _spell(options: dict[str, Any]) -> str:
    return " ".join(f"{key}={'null' if v is None else v}" for key, v in options.items())


def markdown(table: Sequence[CostRow], overrides: Sequence[str]) -> str:
    from jinja2 import Environment, PackageLoader

    tasks: dict[str, dict[str, dict[str, CostRow]]] = {}
    for row in table:
        task, attention, setting = row.key
        tasks.setdefault(task, {}).setdefault(attention, {})[setting] = row
    loader = PackageLoader("lra", "compute")
    pages = Environment(loader=loader, trim_blocks=True, keep_trailing_newline=True)
    return pages.get_template("table.jinja").render(
        overrides=overrides,
        compute=compose([*overrides, "compute=report"]).compute,
        settings=SETTINGS,
        tasks=tasks,
        width=HEAD_DIM,
        lengths=LENGTHS,
        heads={name: [head_flops(name, n) for n in LENGTHS] for name in luna.names()},
    )


@cache
def head_flops(name: str, n: int) -> int:
    import torch

    with torch.device("meta"):
        slot = luna.build(name, n_heads=1, head_dim=HEAD_DIM, max_len=n, profile="published")
    return slot_flops(slot)


def as_csv(table: Sequence[CostRow]) -> str:
    import pandas as pd

    frame = pd.DataFrame([row.numbers() for row in table])
    return str(frame.to_csv(index=False, lineterminator="\n"))
