"""Runs of a plan that cost the same, and what is known of their cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from lra import data
from lra.settings.run import Run


@dataclass
class RunGroup:
    """Runs of a sweep that cost the same."""

    words: list[str]  # of the first
    run: Run
    left: int = 0  # those that are not finished
    costs: dict[str, float] = field(default_factory=dict)  # as first_steps tells them
    whole: bool = True  # else measuring was stopped, and some costs are missing or lower bounds
    timed: int = 0  # steps
    failed: bool = False  # it cannot be measured
    estimated: bool = False  # from steps of finished runs (estimate.py)

    @property
    def known(self) -> bool:
        return "step" in self.costs

    @property
    def measured(self) -> str:
        """How much of it has been measured, for the table."""
        if self.estimated:
            return "estimated"
        if self.known and self.whole:
            return "all"
        if self.timed:
            return f"{self.timed} step{'s' * (self.timed > 1)}"
        return "the start" if "start" in self.costs else "nothing"

    @property
    def seconds(self) -> float:
        """Extrapolate to one run; evaluations that were not measured are left out."""
        recipe, evaluation = self.run.protocol.recipe, self.run.protocol.evaluation
        val, test = (math.ceil(self.costs[split] / recipe.batch) for split in ("val", "test"))
        dev = evaluation.dev_batches if evaluation.dev_batches > 0 and val else val
        steps = recipe.steps
        if first := self.run.pretrain.recipe:  # a single text costs half as much as a pair
            texts = 2 if data.of(self.run.task).dual else 1
            steps += math.ceil(first.steps * first.batch / recipe.batch / texts)
        # The test set is evaluated with the last checkpoint and the best.
        batches = recipe.steps // evaluation.every * dev + 2 * test
        trained = self.costs["start"] + steps * self.costs["step"]
        return trained + batches * self.costs.get("evaluation", 0.0)
