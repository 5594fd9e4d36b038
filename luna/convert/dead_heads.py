"""Dead heads: their features are 0 for nearly every token. Relu features that are all zero get no
gradient and would stay dead, so stage 1 draws their maps again."""

from __future__ import annotations

from typing import TypedDict

import torch
from torch import nn

from luna.convert.maps import Fit
from luna.convert.swap import described, feature_maps
from luna.registry import build


class Redrawn(TypedDict):
    """A head whose feature map was drawn again, and after which step."""

    layer: str
    head: int
    step: int


@torch.no_grad()
def redraw_dead(
    student: nn.Module,
    fit: Fit,
    optimizer: torch.optim.Optimizer,
    already: list[Redrawn],
    step: int,
) -> list[Redrawn]:
    """Draw the feature map of every dead head again, but no head twice; return the heads drawn."""
    done = {(record["layer"], record["head"]) for record in already}
    maps = feature_maps(student)
    drawn: list[Redrawn] = []
    for layer, dead in fit.dead_heads().items():
        heads = [h for h in dead if (layer, h) not in done]
        if not heads:
            continue
        attention = maps[layer]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1_000_003 * step + len(drawn))
            fresh = build(attention.name, **described(student)["options"] | vars(attention.slot))
        if _copy_heads(fresh, attention, heads, len(fit.dead[layer]), optimizer):
            drawn += [{"layer": layer, "head": h, "step": step} for h in heads]
    return drawn


def _copy_heads(
    fresh: nn.Module,
    attention: nn.Module,
    heads: list[int],
    n_heads: int,
    optimizer: torch.optim.Optimizer,
) -> bool:
    """Give these heads the parameters of the fresh map, and their moments in the optimizer 0; False
    where other heads share all of them."""
    changed = False
    for old, new in zip(attention.parameters(), fresh.parameters(), strict=True):
        per_head = old.ndim > 0 and len(old) == n_heads
        if not per_head and len(heads) < n_heads:
            continue  # other heads share it
        part = heads if per_head else slice(None)
        old[part] = new[part].to(old)
        for moment in optimizer.state.get(old, {}).values():
            if moment.shape == old.shape:
                moment[part] = 0
        changed = True
    return changed
