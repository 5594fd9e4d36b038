"""One value of a claim, and what looking values up has in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lra.base.errors import UserError, nearest
from lra.report.table import Table


@dataclass(frozen=True)
class Value:
    """Fields by name, and the text that a bare name stands for."""

    where: str
    fields: Mapping[str, Any]
    text: str = ""

    def field(self, name: str) -> Any:
        if name not in self.fields:
            raise AttributeError(f"{self.where} has no {name!r}{nearest(name, self.fields)}")
        return self.fields[name]

    def __str__(self) -> str:
        if not self.text:
            raise AttributeError(f"{self.where} has several fields: {', '.join(self.fields)}")
        return self.text


def table_of(name: str, tables: Sequence[Table]) -> Table:
    by_name = {table.spec.name: table for table in tables}
    if name not in by_name:
        raise UserError(f"a claim names the table '{name}'{nearest(name, by_name)}")
    return by_name[name]


def column_of(source: Mapping[str, Any], table: Table) -> str:
    """The column of a source; of a table that has one, this."""
    name = source["column"] if len(table.columns) > 1 or "column" in source else table.columns[0]
    if name not in table.columns:
        raise UserError(f"{table.spec.name} has no column '{name}'{nearest(name, table.columns)}")
    return str(name)


def cell_of(table: Table, row: str, column: str) -> pd.Series:
    if (row, column) not in table.cells.index:
        raise UserError(f"{table.spec.name} has no row '{row}'{nearest(row, table.rows.index)}")
    return table.cells.loc[(row, column)]


def line_of(frame: pd.DataFrame, where: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The one line of a frame that meets all conditions."""
    lines = lines_of(frame, where, what)
    if len(lines) != 1:
        raise UserError(f"{what}: {len(lines)} lines have {dict(where)}, not one")
    return {str(key): value for key, value in lines.iloc[0].items()}


def lines_of(frame: pd.DataFrame, where: Mapping[str, Any], what: str) -> pd.DataFrame:
    for key, value in where.items():
        if key not in frame:
            raise UserError(f"{what} has no {key!r}{nearest(key, [*frame])}")
        frame = frame[frame[key].map(str) == str(value)]
    return frame
