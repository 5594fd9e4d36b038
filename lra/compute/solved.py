"""The run that a search for its knobs gives, where its settings ask for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lra.settings.run import Run


def solved(run: Run) -> Run:
    """Knobs identify a run: who looks for its folder sets them first."""
    if not run.compute.solve:
        return run
    from lra.compute.budget import budget_of  # which count networks
    from lra.compute.solve import solve

    return solve(run, budget_of(run))[0]
