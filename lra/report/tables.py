"""Tables from records (`result.json` files) and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from lra.config import UserError
from lra.runs import read_json

COLUMNS = ("attention", "test accuracy", "steps/s", "parameters", "GFLOPs", "MiB", "seed")


def load(folder: str | Path) -> list[dict[str, Any]]:
    """Every finished run below a folder."""
    if not Path(folder).is_dir():
        raise UserError(f"{folder} is no folder of runs; train one: python train.py")
    paths = sorted(Path(folder).rglob("result.json"))
    if not paths:
        raise UserError(f"{folder} holds no finished run; train one: python train.py")
    return [record for path in paths if (record := read_json(path))]


def show(folder: str | Path) -> None:
    """One table per setting in which runs are comparable: task, data, protocol, model, budget."""
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for record in load(folder):
        protocol = record["protocol"]
        key = (record["task"], record["data"]["fingerprint"], protocol["name"], protocol["version"],
               record["model"], record["budget"], record["steps"], record["batch"])  # fmt: skip
        groups.setdefault(key, []).append(record)
    console = Console(highlight=False)
    for records in groups.values():
        console.print(_table(records))


def _table(records: list[dict[str, Any]]) -> Table:
    first = records[0]
    data, protocol = first["data"], first["protocol"]
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
        title=f"{first['task']} ({data['source']}, {data['fingerprint'][:8]}), "
        f"protocol {protocol['name']} v{protocol['version']}, model {first['model']}, "
        f"{first['steps']} steps of {first['batch']} (budget {first['budget']:g})",
        caption=f"{first['test']['examples']} test examples; "
        f"{first['test']['select']} checkpoint by dev accuracy",
        title_justify="left",
        caption_justify="left",
    )
    for column in COLUMNS:
        justify = "left" if column == "attention" else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    for r in sorted(records, key=lambda r: -r["test"]["accuracy"]):
        compute = r["compute"]
        table.add_row(
            r["attention"]["name"], f"{r['test']['accuracy']:.1%}", f"{r['steps_per_second']:.1f}",
            f"{compute['parameters']:,}", f"{compute['flops'] / 1e9:.3f}",
            f"{r['peak_memory_mib']:.0f}", str(r["seed"]),
        )  # fmt: skip
    table.add_section()
    table.add_row("majority class", f"{data['majority']:.1%}", *[""] * 5)
    return table
