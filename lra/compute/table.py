"""`lra compute`: the cost of one run, part by part. `lra compute table`: that of every attention on
every task, as published, as its file ships it, and at the setting that the solver finds, each
compared with the budget.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

import luna
from lra import data
from lra.base.config import Gate
from lra.base.disk import write_atomically
from lra.base.screen import fitted
from lra.compute.budget import times
from lra.compute.count import PartCount, slot_flops
from lra.compute.gate import BudgetCheck, check_budget, counting
from lra.compute.solve import closest
from lra.compute.state import GROWS, state_of_run
from lra.settings.compose import compose
from lra.settings.run import Run
from luna.around import Around

FOLDER = Path("results/compute")
SETTINGS = ("published", "shipped", "solved")
LENGTHS = (1024, 2048, 4096, 16384)
HEAD_DIM = 32  # of model=small
CAPTION = """\
Per example of full length. MFLOPs: products of the forward pass, a multiply-add being 2.
Executed: MFLOPs of the code, which may evaluate a definition in another way."""


def main(arguments: Namespace) -> None:
    words = arguments.overrides
    if words[:1] == ["table"]:
        show_table(words[1:], write=arguments.write)
    else:
        show_run(compose(words))


def show_run(run: Run) -> None:
    """Print the cost of each part, also for a run that its budget would refuse."""
    mode = Gate.off if run.compute.mode is Gate.off else Gate.report
    with counting():
        check = check_budget(replace(run, compute=replace(run.compute, mode=mode)))
    parts = {name: part for name, part in check.count.parts.items() if part != PartCount()}
    lines = {
        name: [
            f"{part.parameters:,}",
            f"{part.buffers:,}",
            f"{part.flops / 1e6:,.1f}",
            f"{part.executed_flops / 1e6:,.1f}",
        ]
        for name, part in (parts | {"total": check.count}).items()
    }
    titles = ["parameters", "buffers", "MFLOPs", "executed"]
    options = _spell(_of_method(check.run.attention))
    print(fitted(f"{run.task.name}: ", options, sys.stdout), end="\n\n")
    for name, cells in ({"": titles} | lines).items():
        print(f"{name:11}", *(f"{cell:>10}" for cell in cells))
    print(f"\n{CAPTION}\n{check.count.training_flops / 1e6:,.1f} MFLOPs forward and backward")
    if beside := check.count.elementwise:
        print(f"beside these, {beside / 1e6:,.1f} M products of states with decays, forward")
    if (state := state_of_run(check.run)) is not None:
        kept = "grows with the tokens" if state == GROWS else f"{state:,} numbers"
        print(f"state of a head between tokens, in its causal form: {kept}")
    print(check.describe())


# ---------------------------------------------------------------------- all methods on all tasks


def show_table(overrides: Sequence[str], *, write: bool) -> None:
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
) -> Iterator[dict[str, Any]]:
    """Yield the rows of these tasks and attentions, by default of all, at each of SETTINGS."""
    for task, attention in product(tasks or data.lra_tasks(), attentions or luna.names()):
        print(f"counting {task}/{attention}", file=sys.stderr)
        words = [f"task={task}", f"attention={attention}", *overrides, "compute=report"]
        runs = {"published": compose([*words, "attention.preset=published"])}
        shipped = runs["shipped"] = compose(words)
        checks = {setting: check_budget(run) for setting, run in runs.items()}
        budget = checks["shipped"].budget
        if budget and (best := closest(shipped, budget)):
            solved = replace(shipped, attention=shipped.attention | best.options)
            checks["solved"] = check_budget(solved)
        options = {setting: check.run.attention for setting, check in checks.items()}
        # The knobs, and every other option in which the settings differ.
        shown = [
            key
            for key, value in options["published"].items()
            if key in shipped.compute.knobs
            or any(of_setting[key] != value for of_setting in options.values())
        ]
        for setting, check in checks.items():
            yield row_of(check, setting, {key: options[setting][key] for key in shown})


def row_of(check: BudgetCheck, setting: str, options: dict[str, Any]) -> dict[str, Any]:
    run, count = check.run, check.count
    return {
        "task": run.task.name,
        "attention": run.attention["name"],
        "setting": setting,
        "options": _spell(options),
        "verdict": str(check.verdict),
        **{f"{measure}_ratio": f"{ratio:.4f}" for measure, ratio in check.ratios.items()},
        **{size: number for size, number in vars(count).items() if size != "parts"},
        **{f"attention_{size}": number for size, number in vars(count.slot).items()},
        "exempt": run.compute.exempt or "",
        "check": check,
    }


def _of_method(attention: dict[str, Any]) -> dict[str, Any]:
    """Leave out of a mixer's options what would stand around an attention: it has no q, k and v."""
    around, own = Around.split(attention)
    return own if luna.registry.mixes(attention["name"]) else own | asdict(around)


def _spell(options: dict[str, Any]) -> str:
    return " ".join(f"{key}={'null' if v is None else v}" for key, v in options.items())


def markdown(table: Sequence[dict[str, Any]], overrides: Sequence[str]) -> str:
    from jinja2 import Environment, PackageLoader

    tasks: dict[str, dict[str, dict[str, Any]]] = {}
    for row in table:
        methods = tasks.setdefault(row["task"], {})
        methods.setdefault(row["attention"], {})[row["setting"]] = row
    loader = PackageLoader("lra", "compute")
    pages = Environment(loader=loader, trim_blocks=True, keep_trailing_newline=True)
    return pages.get_template("table.jinja").render(
        overrides=overrides,
        compute=compose([*overrides, "compute=report"]).compute,
        settings=SETTINGS,
        tasks=tasks,
        width=HEAD_DIM,
        lengths=LENGTHS,
        times=times,
        heads={name: [head_flops(name, n) for n in LENGTHS] for name in luna.names()},
    )


def head_flops(name: str, n: int) -> int:
    """FLOPs of one head without the projections around it; of a mixer with its own."""
    with torch.device("meta"):
        mixer = luna.mixer(name, d_model=HEAD_DIM, n_heads=1, max_len=n, profile="published")
    slot: Any = next(part for part, kind in mixer.parts() if kind == "attention")
    return slot_flops(slot)


def as_csv(table: Sequence[dict[str, Any]]) -> str:
    import pandas as pd

    return str(pd.DataFrame(table).drop(columns="check").to_csv(index=False, lineterminator="\n"))
