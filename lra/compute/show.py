"""`lra compute <overrides>`: parameters and FLOPs of one run, part by part."""

from __future__ import annotations

from dataclasses import replace

from rich import box
from rich.console import Console
from rich.table import Table

from lra.base.config import Gate
from lra.compute.count import PartCount
from lra.compute.gate import BudgetCheck, check_budget
from lra.settings.compose import Run

COLUMNS = {  # of PartCount
    "parameters": "parameters",
    "buffers": "buffers",
    "flops": "MFLOPs",
    "training_flops": "training",
    "executed_flops": "executed",
}


def show(run: Run) -> None:
    """Print the table, also for a run that its budget would refuse."""
    looked = run.compute if run.compute.mode is Gate.off else replace(run.compute, mode=Gate.report)
    check = check_budget(replace(run, compute=looked))
    Console(highlight=False).print(_table(check))
    print(check.describe())
    print(saving(check.count.total))


def _table(check: BudgetCheck) -> Table:
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
