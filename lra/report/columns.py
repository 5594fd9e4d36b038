"""What the facts of a run are to a table of runs: which all of its runs share, which those of one
column share, which name a row. Each is declared here, once, by its column in a frame of runs
(docs/python.md)."""

from __future__ import annotations

import enum

# The first words of the columns that are settings of a run, all others are what came out of it.
PARTS = (
    "attention",
    "model",
    "protocol",
    "task",
    "pretrain",
    "steps_share",
    "precision",
    "processes",
    "optimizer",
    "schedule",
    "callbacks",
    "tune",
)


class Use(enum.Enum):
    """What a fact of a run is to a table."""

    table = "all runs of a table share it"
    column = "all runs of a column share it"
    budget = "all runs of a column share it, unless the table varies a setting: then it follows"
    row = "it names the row wherever it is not none"
    machine = "speeds are compared only where all runs of a column share it"


# Of a column the fingerprint covers every option of the data. All settings that begin with `model.`
# and `protocol.` and are not here are shared by a column, too.
USES = {
    "protocol.name": Use.table,
    "protocol.version": Use.table,
    "model": Use.table,
    "steps_share": Use.table,
    "precision": Use.table,
    "compute.budget.reference": Use.table,
    "compute.budget.tolerance.parameters": Use.table,
    "compute.budget.tolerance.flops": Use.table,
    "data.source": Use.column,
    "data.fingerprint": Use.column,
    "metric": Use.column,
    "select": Use.column,
    "stage.examples": Use.column,
    "optimizer": Use.column,
    "schedule": Use.column,
    "callbacks": Use.column,
    "compute.budget.parameters": Use.budget,
    "compute.budget.flops": Use.budget,
    "processes": Use.row,
    "pretrain.name": Use.row,
    "tune.name": Use.row,
    "machine.device": Use.machine,
    "machine.threads": Use.machine,
    "machine.processes": Use.machine,
}


def used_as(*uses: Use) -> list[str]:
    """The facts of these uses, in the order of their declaration."""
    return [name for name, use in USES.items() if use in uses]
