"""The gate: under `compute=matched` a run outside its budget does not start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lra.compose import Run
from lra.compute.budget import Budget, Cost, budget_of, cost_of, examples, times
from lra.compute.count import Count, count_run
from lra.compute.solve import build_slots, check_knobs, closest, range_of, solve
from lra.config import Gate, UserError
from luna import LunaError


@dataclass(frozen=True)
class Admission:
    """A run that may start: as it will be trained, what it costs, and how it got here."""

    run: Run
    count: Count
    budget: Budget | None
    ratios: dict[str, float]
    solved: dict[str, tuple[Any, Any]]  # option -> (before, after)

    @property
    def verdict(self) -> str | None:
        return self.budget.verdict(self.ratios) if self.budget else None

    def describe(self) -> str:
        """The line of a run's introduction."""
        total = self.count.total
        line = f"{total.parameters:,} parameters  {total.flops / 1e9:.3f} GFLOPs per example"
        if self.budget is None:
            return line
        sizes = (times(self.ratios[m]) for m in ("parameters", "flops") if m in self.ratios)
        line += f"  ({', '.join(sizes)} of {self.budget.reference}: {self.verdict})"
        for option, (before, after) in self.solved.items():
            line += f"\n           solved: attention.{option}={after}, it was {before}"
        if self.run.compute.exempt and self.verdict != "matched":
            line += f"\n           exempt: {self.run.compute.exempt}"
        return line

    def record(self) -> dict[str, Any]:
        """The `compute` of result.json."""
        record = {"mode": self.run.compute.mode.name} | self.count.record()
        if self.budget is None:
            return record
        return record | {
            "budget": self.budget.record(),
            "reference": {"attention": self.budget.reference} | self.ratios,
            "verdict": self.verdict,
            "exempt": self.run.compute.exempt,
            "solved": {option: list(change) for option, change in self.solved.items()},
        }


def admit(run: Run) -> Admission:
    """Hold a run to its budget: solve it if asked, refuse it if it must match and does not."""
    if run.compute.mode is Gate.off:
        return Admission(run, count_run(run), None, {}, {})
    budget = budget_of(run)
    matched, solved = run.compute.mode is Gate.matched, {}
    if matched:
        _says_its_flops(run)
    if matched or run.compute.solve:
        check_knobs(run)
    if run.compute.solve:
        run, solved = solve(run, budget)
    count = count_run(run)
    ratios = budget.ratios(cost_of(run, count))
    admission = Admission(run, count, budget, ratios, solved)
    if matched and run.compute.exempt is None and admission.verdict != "matched":
        raise UserError(refusal(admission))
    return admission


def refusal(admission: Admission) -> str:
    """Why a run does not start: both numbers, their ratios, and what to do instead."""
    run, budget, ratios = admission.run, admission.budget, admission.ratios
    assert budget is not None
    name, tolerance = run.attention["name"], budget.tolerance
    own = Cost(admission.count.parameters, admission.count.flops, examples(run.protocol))
    told = {
        "parameters": f"{own.parameters:,} parameters against {budget.cost.parameters or 0:,}",
        "flops": f"{own.flops / 1e9:.3f} GFLOPs against {(budget.cost.flops or 0) / 1e9:.3f}",
        "examples": f"{own.examples:,} training examples against {budget.cost.examples or 0:,}",
    }
    compared = ", ".join(
        f"{told[m]} ({times(r)}, allowed ±{getattr(tolerance, m):.0%})" for m, r in ratios.items()
    )
    return (
        f"attention '{name}' is outside the compute budget of {budget.reference}: {compared}; "
        f"{_advice(run, budget)}, or compute=report to run it as it is"
    )


def _advice(run: Run, budget: Budget) -> str:
    training = budget.ratios(Cost(None, None, examples(run.protocol)))
    if budget.excess(training):
        return (
            "train as long as the protocol does (budget=.. scales every method's steps alike; "
            "protocol.recipe.steps x batch must stay)"
        )
    best = closest(run, budget)
    if best is None:
        return "it has no knob to turn"
    setting = " ".join(f"attention.{k}={v}" for k, v in best.options.items())
    size = ", ".join(f"{m} {times(r)}" for m, r in best.ratios.items() if m != "examples")
    if best.excess:
        ranges = ", ".join(f"{k} {range_of(v)}" for k, v in run.compute.knobs.items())
        return f"no setting of {ranges} fits, the closest is {setting} ({size})"
    return f"{setting} fits ({size}): set it, or compute.solve=true"


def _says_its_flops(run: Run) -> None:
    """Matched compute trusts no count alone: the method must say what it costs as well."""
    name = run.attention["name"]
    slot = build_slots(run, run.attention)[0]
    try:
        slot.flops(slot.max_len)
    except (LunaError, NotImplementedError) as error:
        raise UserError(
            f"attention '{name}' does not say its FLOPs, so compute=matched cannot check what is "
            f"counted: give {type(slot).__name__} a method flops(self, n, d_v=None) that returns "
            "the forward FLOPs of all heads on one example of n tokens (a KernelAttention: "
            "feature_flops(self, n)), or run it with compute=report"
        ) from error
