"""The gate: under `compute=matched` a run outside its budget does not start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lra.base.config import Gate, UserError
from lra.compute.budget import Budget, Cost, budget_of, cost_of, times
from lra.compute.count import Count, count_run
from lra.compute.solve import check_knobs, closest, range_of, solve
from lra.model.pretrain import phase_one
from lra.settings.compose import Run

SIZES = ("parameters", "flops")
LABELS = {"parameters": "parameters", "flops": "FLOPs", "examples": "examples"}


@dataclass(frozen=True)
class BudgetCheck:
    run: Run
    count: Count
    budget: Budget | None
    ratios: dict[str, float]
    solved: dict[str, tuple[Any, Any]]  # option -> (before, after)
    first: Count | None = None  # of phase one

    @property
    def verdict(self) -> str | None:
        return self.budget.verdict(self.ratios) if self.budget else None

    def describe(self) -> str:
        total = self.count.total
        line = f"{total.parameters:,} parameters  {total.flops / 1e9:.3f} GFLOPs per example"
        if self.first is not None:
            work = self.work()
            line += (
                f"\ntraining {sum(work.values()) / 1e12:,.3f} TFLOPs, "
                f"{work['phase_one'] / sum(work.values()):.0%} of them in phase one"
            )
        if self.budget is None:
            return line
        outside = self.budget.outside(self.ratios)
        shown = [m for m in self.ratios if m in SIZES or m in outside]
        ratios = ", ".join(f"{LABELS[m]} {times(self.ratios[m])}" for m in shown)
        line += f"\nagainst {self.budget.reference}: {ratios}: {self.verdict}"
        for option, (before, after) in self.solved.items():
            line += f"\nsolved: attention.{option}={after}, it was {before}"
        if self.run.compute.exempt and self.verdict != "matched":
            line += f"\nexempt: {self.run.compute.exempt}"
        return line

    def work(self) -> dict[str, int]:
        recipes = {"phase_one": self.run.pretrain.recipe, "phase_two": self.run.protocol.recipe}
        counts = {"phase_one": self.first, "phase_two": self.count}
        return {
            phase: recipe.steps * recipe.batch * count.total.training_flops
            for phase, recipe in recipes.items()
            if recipe is not None and (count := counts[phase]) is not None
        }

    def record(self) -> dict[str, Any]:
        record = {"mode": self.run.compute.mode.name} | self.count.record()
        if self.first is not None:
            total, work = self.first.total, self.work()
            one = {key: getattr(total, key) for key in ("parameters", "flops", "training_flops")}
            record |= {"phase_one": one, "training": work | {"both": sum(work.values())}}
        if self.budget is None:
            return record
        return record | {
            "budget": self.budget.record(),
            "reference": {"attention": self.budget.reference} | self.ratios,
            "verdict": self.verdict,
            "exempt": self.run.compute.exempt,
            "solved": {option: list(change) for option, change in self.solved.items()},
        }


def check_budget(run: Run) -> BudgetCheck:
    """Check a run against its budget: solve for its knobs if asked, refuse it if it must match and
    does not."""
    if run.compute.mode is Gate.off:
        return BudgetCheck(run, count_run(run), None, {}, {}, _count_first(run))
    budget = budget_of(run)
    matched = run.compute.mode is Gate.matched
    solved: dict[str, tuple[Any, Any]] = {}
    if matched or run.compute.solve:
        check_knobs(run)
    if run.compute.solve:
        run, solved = solve(run, budget)
    count, first = count_run(run), _count_first(run)
    ratios = budget.ratios(cost_of(run, count, first))
    check = BudgetCheck(run, count, budget, ratios, solved, first)
    # An exemption is from the size, never from the length of training.
    if matched and set(budget.outside(ratios)) - set(SIZES if run.compute.exempt else ()):
        raise UserError(refusal(check))
    return check


def _count_first(run: Run) -> Count | None:
    first = phase_one(run)
    return None if first is None else count_run(first)


def with_solved_options(run: Run) -> Run:
    return solve(run, budget_of(run))[0] if run.compute.solve else run


def refusal(check: BudgetCheck) -> str:
    run, count, budget = check.run, check.count, check.budget
    assert budget is not None
    cost = cost_of(run, count, check.first)
    costs = {
        "parameters": f"{cost.parameters:,} parameters against {budget.cost.parameters or 0:,}",
        "flops": f"{count.flops / 1e9:.3f} GFLOPs against {(budget.cost.flops or 0) / 1e9:.3f}",
        "examples": f"{cost.examples:,} training examples against {budget.cost.examples or 0:,}",
    }
    outside = budget.outside(check.ratios)
    compared = ", ".join(
        f"{costs[m]} ({times(r)}, allowed ±{getattr(budget.tolerance, m):.0%})"
        for m, r in check.ratios.items()
        if m != "examples" or m in outside
    )
    advice = _advice(run, budget, cost.examples)
    return (
        f"attention '{run.attention['name']}' is outside the compute budget of "
        f"{budget.reference}: {compared}; {advice}; compute=report runs it as it is"
    )


def _advice(run: Run, budget: Budget, trained: int | None) -> str:
    if budget.outside(budget.ratios(Cost(None, None, trained))):
        if run.pretrain.comes_first and run.compute.both_phases:
            return "both phases count: lower pretrain.recipe.steps and protocol.recipe.steps"
        return "train as long as the protocol does (budget=.. scales every method's steps alike)"
    if run.compute.preset != "matched":
        return f"attention.preset={run.compute.preset} has no budget: use attention.preset=matched"
    best = closest(run, budget)
    if best is None:
        return "it has no knob that changes its cost"
    setting = " ".join(f"attention.{k}={v}" for k, v in best.options.items())
    size = ", ".join(f"{LABELS[m]} {times(r)}" for m, r in best.ratios.items())
    if best.excess:
        ranges = ", ".join(f"{k} {range_of(v)}" for k, v in run.compute.knobs.items())
        return f"no setting of {ranges} meets the budget, the closest is {setting} ({size})"
    return f"{setting} fits ({size}): add it, or compute.solve=true, which finds it"
