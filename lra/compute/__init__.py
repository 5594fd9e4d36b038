"""Parameters and FLOPs of a network, and the budget they are held to."""

from lra.compute.budget import Budget, budget_of
from lra.compute.count import Count, PartCount, count_run
from lra.compute.gate import Admission, admit, settled

__all__ = [
    "Admission",
    "Budget",
    "Count",
    "PartCount",
    "admit",
    "budget_of",
    "count_run",
    "settled",
]
