"""Tables from records (`result.json` files) and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from lra.config import UserError
from lra.disk import read_json
from lra.report.records import paths as results_below

COLUMNS = (
    "attention", "accuracy", "steps/s", "parameters", "GFLOPs", "compute", "MiB", "seed",
)  # fmt: skip


def load(folder: str | Path) -> list[dict[str, Any]]:
    """Every finished run below a folder."""
    if not Path(folder).is_dir():
        raise UserError(f"{folder} is no folder of runs; train one: python train.py")
    paths = [p for p in results_below(Path(folder)) if p.name == "result.json"]
    if not paths:
        raise UserError(f"{folder} holds no finished run; train one: python train.py")
    return [record for path in paths if (record := read_json(path))]


def show(folder: str | Path) -> None:
    """One table per setting in which runs are comparable: task, data, protocol, model, steps, and
    the compute budget that they were held to."""
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for record in load(folder):
        protocol = record["protocol"]
        key = (record["task"], record["data"]["fingerprint"], protocol["name"], protocol["version"],
               record["model"], record["budget"], record["steps"], record["batch"],
               compute_budget(record))  # fmt: skip
        groups.setdefault(key, []).append(record)
    console = Console(highlight=False)
    for records in groups.values():
        console.print(_table(records))
        console.print()


def compute_budget(record: dict[str, Any]) -> tuple[Any, ...] | None:
    """What a run's parameters, FLOPs and examples were measured by; None if by nothing."""
    budget = record["compute"].get("budget")
    if budget is None:
        return None
    return tuple((key, tuple(v.items()) if isinstance(v, dict) else v) for key, v in budget.items())


def one_budget(records: Sequence[dict[str, Any]]) -> None:
    """Refuse to rank or average runs that were held to different compute budgets: on one task the
    same numbers, across tasks the same reference and tolerances."""
    rules: set[Any] = set()
    numbers: dict[str, set[Any]] = {}
    for record in records:
        budget = record["compute"].get("budget")
        rules.add(budget and (budget["reference"], tuple(budget["tolerance"].items())))
        numbers.setdefault(record["task"], set()).add(compute_budget(record))
    if len(rules) > 1 or any(len(found) > 1 for found in numbers.values()):
        told = sorted({_budget_name(r["compute"].get("budget")) for r in records})
        raise UserError(
            f"these runs were held to different compute budgets ({'; '.join(told)}): they can be "
            "neither ranked nor averaged together"
        )


def _budget_name(budget: dict[str, Any] | None) -> str:
    if budget is None:
        return "none, compute=off"
    parameters = f"{budget['parameters']:,} parameters" if budget["parameters"] else ""
    flops = f"{budget['flops'] / 1e9:.3f} GFLOPs" if budget["flops"] else ""
    return f"{budget['reference']}: " + ", ".join(filter(None, (parameters, flops)))


def compute_class(record: dict[str, Any]) -> str:
    """`matched`, `over budget ×N` or `under ×N`, and whether it is exempt by declaration."""
    compute = record["compute"]
    verdict = compute.get("verdict") or "-"
    return f"exempt, {verdict}" if compute.get("exempt") and verdict != "matched" else verdict


def _table(records: list[dict[str, Any]]) -> Table:
    one_budget(records)
    first = records[0]
    data, protocol = first["data"], first["protocol"]
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title_style="bold",
        caption_style="dim",
        padding=0,
        show_edge=False,
        title=f"{first['task']}, data {data['source']} {data['fingerprint'][:8]}\n"
        f"protocol {protocol['name']} v{protocol['version']}, model {first['model']}, "
        f"{first['steps']} steps of {first['batch']} (budget {first['budget']:g})",
        caption=f"accuracy on {first['test']['examples']} test examples, "
        f"{first['test']['select']} checkpoint by dev accuracy\n"
        f"compute budget {_budget_name(first['compute'].get('budget'))}",
        title_justify="left",
        caption_justify="left",
    )
    for column in COLUMNS:
        left = column == "attention"
        # Where a row is too long for the terminal, the class of compute gives way.
        wraps = column == "compute"
        table.add_column(column, justify="left" if left else "right", no_wrap=not wraps)
    for r in sorted(records, key=lambda r: -r["test"]["accuracy"]):
        compute = r["compute"]
        table.add_row(
            r["attention"]["name"], f"{r['test']['accuracy']:.1%}", f"{r['steps_per_second']:.1f}",
            f"{compute['parameters']:,}", f"{compute['flops'] / 1e9:.3f}", compute_class(r),
            f"{r['peak_memory_mib']:.0f}", str(r["seed"]),
        )  # fmt: skip
    table.add_section()
    table.add_row("majority class", f"{data['majority']:.1%}", *[""] * (len(COLUMNS) - 2))
    return table
