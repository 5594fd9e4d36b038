"""The budget of a run: what a reference attention costs on the same backbone and protocol.

Three measures: trained parameters, FLOPs of a forward pass on one example, and the number of
training examples (steps x batch).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from omegaconf import OmegaConf

from lra.base.config import Objective, Positions, Pretrain, Protocol, Tolerance
from lra.compute.count import count_run
from lra.settings.compose import row_of_own_task, scale
from lra.settings.presets import reference_of
from lra.settings.run import Run
from lra.settings.search_path import read

MEASURES = ("parameters", "flops", "examples")
NUMBERS = "numbers"  # the name of a budget given in numbers, not by an attention
SLACK = 1e-9  # a ratio exactly on the bound counts as inside


@dataclass(frozen=True)
class Cost:
    """What a run costs, or may cost; None means not limited."""

    parameters: int | None
    flops: int | None
    examples: int | None


@dataclass(frozen=True)
class Budget:
    reference: str
    cost: Cost
    tolerance: Tolerance

    def ratios(self, cost: Cost) -> dict[str, float]:
        spent, limit = asdict(cost), asdict(self.cost)
        return {m: spent[m] / limit[m] for m in MEASURES if limit[m] and spent[m] is not None}

    def outside(self, ratios: dict[str, float]) -> dict[str, float]:
        allowed = asdict(self.tolerance)
        return {m: r for m, r in ratios.items() if abs(r - 1) > allowed[m] + SLACK}

    def excess(self, ratios: dict[str, float]) -> float:
        """Say how far the worst measure lies outside its tolerance, in units of that tolerance."""
        allowed, outside = asdict(self.tolerance), self.outside(ratios)
        return max((abs(r - 1) / allowed[m] - 1 for m, r in outside.items()), default=0)

    def verdict(self, ratios: dict[str, float]) -> str:
        """Say `matched`, `over budget ×N` or `under ×N`, where N is the worst ratio."""
        outside = self.outside(ratios).values()
        if not outside:
            return "matched"
        over = [r for r in outside if r > 1]
        return f"over budget {times(max(over))}" if over else f"under {times(min(outside))}"

    def record(self) -> dict[str, Any]:
        sizes = asdict(self.cost)
        return {"reference": self.reference, **sizes, "tolerance": asdict(self.tolerance)}


def budget_of(run: Run) -> Budget:
    reference = run.compute.reference
    if isinstance(reference, str):
        style = run.protocol.style
        if style.positions is Positions.alibi:  # a form that few attentions have
            style = replace(style, positions=Positions.none)
        counted = replace(run, protocol=replace(run.protocol, style=style))
        count = count_run(counted, reference_of(reference, run.task.name))
        cost = Cost(count.parameters, count.flops, protocol_examples(run))
        return Budget(reference, cost, run.compute.tolerance)
    numbers = dict.fromkeys(MEASURES) | {"examples": protocol_examples(run)} | reference
    return Budget(NUMBERS, Cost(**numbers), run.compute.tolerance)


def examples(protocol: Protocol) -> int:
    return protocol.recipe.steps * protocol.recipe.batch


def protocol_examples(run: Run) -> int | None:
    """Scale steps x batch of the protocol's file by `steps_share`; None without a file."""
    file = read("protocol", run.protocol.name)
    if file is None:
        return None
    cfg = OmegaConf.create({"task": run.task, "attention": {"name": run.attention["name"]}})
    cfg.protocol = OmegaConf.merge(OmegaConf.structured(Protocol), file)
    row_of_own_task(cfg)
    OmegaConf.resolve(cfg)
    protocol = cast(Protocol, OmegaConf.to_object(cfg.protocol))
    shipped = replace(run, protocol=protocol, pretrain=Pretrain(Objective.none))
    scale(shipped)
    return examples(shipped.protocol)


def times(ratio: float) -> str:
    """Write a ratio as ×0.98, ×3.66, ×26.5, ×3,990 or ×0.002."""
    if ratio < 0.1:
        return f"×{ratio:.1g}"
    digits = 2 if ratio < 10 else 1 if ratio < 100 else 0
    return f"×{ratio:,.{digits}f}"
