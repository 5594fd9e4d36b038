"""The compute budget that a run was held to, as tables tell it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lra.config import UserError


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
        told = sorted({budget_name(r["compute"].get("budget")) for r in records})
        raise UserError(
            f"these runs were held to different compute budgets ({'; '.join(told)}): they can be "
            "neither ranked nor averaged together"
        )


def budget_name(budget: dict[str, Any] | None) -> str:
    if budget is None:
        return "none, compute=off"
    parameters = f"{budget['parameters']:,} parameters" if budget.get("parameters") else ""
    flops = f"{budget['flops'] / 1e9:.3f} GFLOPs" if budget.get("flops") else ""
    return f"{budget.get('reference')}: " + ", ".join(filter(None, (parameters, flops)))


def compute_class(record: dict[str, Any]) -> str:
    """`matched`, `over budget ×N` or `under ×N`, and whether it is exempt by declaration."""
    compute = record["compute"]
    verdict = compute.get("verdict") or "-"
    return f"exempt, {verdict}" if compute.get("exempt") and verdict != "matched" else verdict
