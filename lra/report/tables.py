"""The compute budget that a run was held to, as tables tell it."""

from __future__ import annotations

from typing import Any


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
