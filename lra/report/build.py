"""All tables of a results folder: those of training runs that tables.yaml names (trainings.py), and
one for each converted model (conversions.py)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lra.report.conversions import conversions
from lra.report.effects import agreements
from lra.report.specs import TableSpec, select, taken
from lra.report.table import Table
from lra.report.trainings import build
from lra.runs.schema import TRAINING


def build_all(specs: Sequence[TableSpec], runs: pd.DataFrame, folder: Path) -> list[Table]:
    """The tables for which there are runs, those of the specs first, then one for each converted
    model; `folder` is the one that all runs come from."""
    tables: dict[str, Table] = {}
    for spec in specs:
        if not (chosen := selected(spec, runs, folder)).empty:
            tables[spec.name] = build(spec, chosen, folder.parent, known=runs)
    for table in tables.values():
        if table.spec.against in tables:
            table.agreements = agreements(table, tables[table.spec.against])
    return [*tables.values(), *conversions(taken(runs, folder, ""))]


def selected(spec: TableSpec, runs: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The training runs that an entry of tables.yaml takes from the records of a folder."""
    training = taken(runs, folder, spec.records)
    training = training[training["kind"] == TRAINING]
    finished = pd.to_datetime(training["times.finished"], utc=True, format="ISO8601")
    training = training.loc[finished.sort_values(kind="stable").index].drop_duplicates("run")
    order = ["task", "protocol", "model", "attention", "run"]
    return select(training.sort_values(order), spec.where)
