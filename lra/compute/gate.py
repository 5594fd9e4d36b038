"""The gate: a run outside its budget does not start, where its protocol promises equal cost."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from lra.base.config import Gate
from lra.base.errors import UserError
from lra.compute.budget import Budget, Cost, budget_of, examples, times
from lra.compute.count import Count, count_run, unseen_work
from lra.compute.state import state_of_run
from lra.data.registry import BUILTIN
from lra.model.pretrain import phase_one
from lra.settings.run import Run

SILENCE = 2.0  # seconds after which counting says what it does
SIZES = ("parameters", "flops")
LABELS = {"parameters": "parameters", "flops": "FLOPs", "examples": "examples"}


@dataclass(frozen=True)
class BudgetCheck:
    run: Run
    count: Count
    first: Count | None  # of phase one
    budget: Budget | None
    solved: dict[str, tuple[Any, Any]]  # option -> (before, after)

    @property
    def cost(self) -> Cost:
        """An example of phase one weighs what it costs beside one of phase two: those of a task of
        pairs are half as long."""
        trained: float = examples(self.run.protocol)
        if self.first and self.run.compute.both_phases:
            trained += self.work["phase_one"] / self.count.training_flops
        return Cost(self.count.parameters, self.count.flops, round(trained))

    @property
    def ratios(self) -> dict[str, float]:
        return self.budget.ratios(self.cost) if self.budget else {}

    @property
    def verdict(self) -> str | None:
        return self.budget.verdict(self.ratios) if self.budget else None

    @property
    def work(self) -> dict[str, int]:
        """Training FLOPs of both phases."""
        one, first = self.run.pretrain.recipe, self.first
        assert one
        assert first
        return {
            "phase_one": one.steps * one.batch * first.training_flops,
            "phase_two": examples(self.run.protocol) * self.count.training_flops,
        }

    def describe(self) -> str:
        count, compute = self.count, self.run.compute
        lines = [f"{count.parameters:,} parameters  {count.flops / 1e9:.3f} GFLOPs per example"]
        if (unseen := unseen_work(self.run)) > 1:
            lines += [
                f"not counted: for each FLOP counted of '{self.run.attention['name']}' it computes "
                f"{unseen:.1f} elements one by one; declare its FLOPs by a method `flops`"
            ]
        if self.first:
            share = self.work["phase_one"] / (total := sum(self.work.values()))
            lines += [f"training {total / 1e12:,.3f} TFLOPs, {share:.0%} of them in phase one"]
        if self.budget is None:
            return "\n".join(lines)
        outside = self.budget.outside(self.ratios)
        shown = [m for m in self.ratios if m in SIZES or m in outside]
        ratios = ", ".join(f"{LABELS[m]} {times(self.ratios[m])}" for m in shown)
        lines += [f"against {self.budget.reference}: {ratios}: {self.verdict}"]
        for option, (before, after) in self.solved.items():
            lines += [f"solved: attention.{option}={after}, it was {before}"]
        if compute.exempt and self.verdict != "matched":
            lines += [f"exempt: {compute.exempt}"]
        elif compute.mode is Gate.report and self.verdict != "matched":
            lines += ["it runs all the same (compute=report); compute=matched would refuse it"]
        return "\n".join(lines)

    def record(self) -> dict[str, Any]:
        record = {"mode": self.run.compute.mode.name} | self.count.record()
        record["state"] = state_of_run(self.run)
        if self.first:
            sizes = ("parameters", "flops", "training_flops")
            record["phase_one"] = {size: getattr(self.first, size) for size in sizes}
            record["training"] = self.work | {"both": sum(self.work.values())}
        if self.budget is None:
            return record
        return record | {
            "budget": self.budget.record(),
            "reference": {"attention": self.budget.reference} | self.ratios,
            "verdict": self.verdict,
            "exempt": self.run.compute.exempt,
            "solved": {option: list(change) for option, change in self.solved.items()},
        }


@contextmanager
def counting() -> Iterator[None]:
    """Say on standard error that a run is counted if that takes longer than SILENCE."""
    words = ("counting parameters and FLOPs ...",)
    timer = threading.Timer(SILENCE, print, words, {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def check_budget(run: Run) -> BudgetCheck:
    """Check a run against its budget; solve for its knobs if asked, refuse a miss if `matched`."""
    solved: dict[str, tuple[Any, Any]] = {}
    budget = None if run.compute.mode is Gate.off else budget_of(run)
    if budget and run.compute.solve:
        from lra.compute.solve import solve

        run, solved = solve(run, budget)
    first = phase_one(run)
    check = BudgetCheck(run, count_run(run), count_run(first) if first else None, budget, solved)
    if run.compute.mode is Gate.usual:
        mode = Gate.matched if _promised(run, budget) else Gate.report
        check = replace(check, run=replace(run, compute=replace(run.compute, mode=mode)))
    # An exemption is from the size, never from the length of training.
    exempt = SIZES if run.compute.exempt else ()
    matched = check.run.compute.mode is Gate.matched
    if budget and matched and set(budget.outside(check.ratios)) - {*exempt}:
        raise UserError(refusal(check, budget))
    return check


def _promised(run: Run, budget: Budget | None) -> bool:
    """Whether this is a task of ours, trained as long as its protocol says."""
    asked = budget.cost.examples if budget else None
    lasting = {"examples": examples(run.protocol) / asked} if asked else {}
    return run.task.name in BUILTIN and not (budget and budget.outside(lasting))


def refusal(check: BudgetCheck, budget: Budget) -> str:
    cost, limit, outside = asdict(check.cost), asdict(budget.cost), budget.outside(check.ratios)
    compared = []
    for m in [m for m in check.ratios if m in SIZES or m in outside]:
        pair = [f"{n / 1e9:.3f}" if m == "flops" else f"{n:,}" for n in (cost[m], limit[m])]
        what = {"flops": "GFLOPs", "examples": "training examples"}.get(m, m)
        allowed = f"{times(check.ratios[m])}, allowed ±{getattr(budget.tolerance, m):.0%}"
        compared.append(f"{pair[0]} {what} against {pair[1]} ({allowed})")
    return (
        f"attention '{check.run.attention['name']}' is outside the compute budget of "
        f"{budget.reference}: {', '.join(compared)}; {_advice(check.run, budget, outside)}; "
        "compute=report runs it as it is"
    )


def _advice(run: Run, budget: Budget, outside: dict[str, float]) -> str:
    from lra.compute.solve import closest, range_of

    if "examples" in outside:
        if run.pretrain.recipe and run.compute.both_phases:
            return "both phases count: lower pretrain.recipe.steps and protocol.recipe.steps"
        return "train as long as the protocol does (steps_share scales every method's steps alike)"
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
