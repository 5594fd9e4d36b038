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
    highest: list[str]  # methods above the best rule in every seed, each at its best setting
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
    above = [place for place in places.values() if rule is None or _above(place, rule)]
    above.sort(key=lambda place: -place.cell.sign * place.cell.score)
    usual, best = task.usual.get("luna"), task.best.get("luna")
    return Need(
        words=task.need,
        task=task,
        at=at - 1,
        order=f"{at}-{'desc' if first.sign > 0 else 'asc'}",
        budget="full budget" if is_full(first.records[0]) else f"small: {first.steps:,} steps",
        highest=[_named(place, task.usual) for place in above[:MOST]],
        rule="" if name is None or rule is None else f"“{name}”, {rounded(rule, first.digits)}",
        luna=usual.cell.text if usual else "not run",
        luna_best=f"{best.cell.text}, {setting_of(best, usual)}" if best else "",
    )


def _above(place: Place, rule: float) -> bool:
    return all(place.cell.sign * value > place.cell.sign * rule for value in place.cell.values)


def _named(place: Place, usual: dict[str, Place]) -> str:
    method = place.cell.attention
    words = [look_of(method).name, setting_of(place, usual[method])]
    return f"{', '.join(filter(None, words))}: {rounded(place.cell.score, place.cell.digits)}"
