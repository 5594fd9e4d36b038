"""A remedy for dead heads: relu features that are all zero get no gradient and would stay dead."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from luna.base import Attention
from luna.convert.swap import build_like, described, feature_maps


@torch.no_grad()
def redraw_dead(
    student: nn.Module,
    dead: dict[str, list[float]],
    threshold: float,
    optimizer: torch.optim.Optimizer,
    already: list[dict[str, Any]],
    step: int,
) -> list[dict[str, Any]]:
    """Draw the feature map of every dead head again, but no head twice; returns the heads drawn."""
    maps = feature_maps(student)
    done = {(record["layer"], record["head"]) for record in already}
    drawn: list[dict[str, Any]] = []
    for layer, fractions in dead.items():
        heads = [h for h, f in enumerate(fractions) if f > threshold and (layer, h) not in done]
        if not heads:
            continue
        fresh = build_like(
            maps[layer], described(student)["options"], seed=1_000_003 * step + len(drawn)
        )
        if _copy_heads(maps[layer], fresh, heads, len(fractions), optimizer):
            drawn += [{"layer": layer, "head": h, "step": step} for h in heads]
    return drawn


def _copy_heads(
    attention: Attention,
    fresh: Attention,
    heads: list[int],
    n_heads: int,
    optimizer: torch.optim.Optimizer,
) -> bool:
    """Copy the slices of `heads`. A parameter that heads share is copied only if all are dead."""
    changed = False
    for old, new in zip(attention.parameters(), fresh.parameters(), strict=True):
        per_head = old.ndim > 0 and len(old) == n_heads
        if not per_head and len(heads) < n_heads:
            continue
        part = heads if per_head else slice(None)
        old[part] = new[part].to(old)
        for moment in optimizer.state.get(old, {}).values():
            if moment.shape == old.shape:
                moment[part] = 0
        changed = True
    return changed
