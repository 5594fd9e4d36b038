"""What the page opens on: what a reader may need, and what is highest there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lra.looks import look_of
from lra.report.cell import rounded
from lra.report.overview import Place, Task, is_full, setting_of

MOST = 3  # methods that are named


@dataclass(frozen=True)
class Need:
    words: str
    task: Task
    at: int  # the place of its task among all
    order: str  # of the address: the column of all tasks, best first
    budget: str
    highest: list[str]  # methods above the best rule, each at its best setting; in every seed first
    rule: str
    luna: str  # as published
    luna_best: str


def needs_of(tasks: Sequence[Task]) -> list[Need]:
    shown = [task for task in tasks if task.usual]
    return [_need(task, at) for at, task in enumerate(shown, 1) if task.need]


def _need(task: Task, at: int) -> Need:
    places = {method: task.best.get(method, place) for method, place in task.usual.items()}
    first = next(iter(places.values())).cell
    name = task.table.best_rule(task.column)
    rule = None if name is None else float(task.table.rules.loc[name, task.column])
    named = [place for place in places.values() if _share_above(place, rule)]
    named.sort(key=lambda place: (-_share_above(place, rule), -place.cell.sign * place.cell.score))
    usual, best = task.usual.get("luna"), task.best.get("luna")
    return Need(
        words=task.need,
        task=task,
        at=at - 1,
        order=f"{at}-{'desc' if first.sign > 0 else 'asc'}",
        budget="full budget" if is_full(first.records[0]) else f"small: {first.steps:,} steps",
        highest=[_named(place, task.usual, rule) for place in named[:MOST]],
        rule="" if name is None or rule is None else f"“{name}”, {rounded(rule, first.digits)}",
        luna=usual.cell.text if usual else "not run",
        luna_best=f"{best.cell.text}, {setting_of(best, usual)}" if best else "",
    )


def _share_above(place: Place, rule: float | None) -> float:
    """Of its seeds, those above the best rule; without a rule all."""
    cell = place.cell
    above = [rule is None or cell.sign * value > cell.sign * rule for value in cell.values]
    return sum(above) / len(above)


def _named(place: Place, usual: dict[str, Place], rule: float | None) -> str:
    """With its mean, or where some seeds are below the rule with how many are above it."""
    cell, share = place.cell, _share_above(place, rule)
    words = [look_of(cell.attention).name, setting_of(place, usual[cell.attention])]
    name = ", ".join(filter(None, words))
    if share < 1:
        return f"{name} in {round(share * cell.seeds)} of {cell.seeds} seeds"
    return f"{name}: {rounded(cell.score, cell.digits)}"
