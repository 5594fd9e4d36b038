"""Parameters and FLOPs of a network, and the budget they are held to."""

from lra.compute.budget import Budget, budget_of
from lra.compute.count import Count, PartCount, count_run
from lra.compute.gate import BudgetCheck, check_budget, with_solved_options

__all__ = [
    "Budget",
    "BudgetCheck",
    "Count",
    "PartCount",
    "budget_of",
    "check_budget",
    "count_run",
    "with_solved_options",
]
