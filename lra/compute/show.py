"""`lra compute <overrides>`: one run by part, nothing trained."""

from __future__ import annotations

from dataclasses import replace

from rich import box
from rich.console import Console
from rich.table import Table

from lra.compose import Run
from lra.compute.count import Part
from lra.compute.gate import Admission, admit
from lra.config import Gate

COLUMNS = {  # of Part
    "parameters": "parameters",
    "buffers": "buffers",
    "flops": "MFLOPs",
    "training_flops": "training",
    "elementwise": "elements, M",
    "executed_flops": "executed",
}


def show(run: Run) -> None:
    """Whatever the budget says: to look is not to train."""
    looked = run.compute if run.compute.mode is Gate.off else replace(run.compute, mode=Gate.report)
    admitted = admit(replace(run, compute=looked))
    Console(highlight=False).print(_table(admitted))
    print(admitted.describe())
    print(saving(admitted.count.total))


def _table(admitted: Admission) -> Table:
    run = admitted.run
    options = " ".join(f"{k}={v}" for k, v in run.attention.items() if k != "name")
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
        title=f"{run.task.name}/{run.attention['name']} {options}, model {run.model.name}, "
        f"protocol {run.protocol.name}",
        caption="per example of full length; FLOPs of products, a multiply-add being 2; training "
        "is forward and backward; element-wise work in elements, forward; executed is what the "
        "code does where it does other work than it computes",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("part")
    for title in COLUMNS.values():
        table.add_column(title, justify="right")
    for name, part in admitted.count.parts.items():
        if part != Part():
            table.add_row(name, *_cells(part))
    table.add_section()
    table.add_row("total", *_cells(admitted.count.total))
    return table


def _cells(part: Part) -> list[str]:
    cells = []
    for key in COLUMNS:
        value = getattr(part, key)
        cells.append(f"{value:,}" if key in ("parameters", "buffers") else f"{value / 1e6:,.1f}")
    return cells


def saving(total: Part) -> str:
    share = total.executed_flops / total.flops - 1 if total.flops else 0.0
    if abs(share) < 5e-4:
        return "executed as counted"
    less = "fewer" if share < 0 else "more"
    return f"the code executes {abs(share):.1%} {less} FLOPs than are counted"
