"""A folder of results as it was read, its tables and files looked up by name; and what a look-up
gives, a `Fact`."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lra.base.errors import UserError, nearest
from lra.data import hunt, rules
from lra.report.cell import Cell
from lra.report.table import Table

KEPT = {rules.FILE: rules.read_scores, hunt.FILE: hunt.read_hunts}  # with a digest for each line


class Fact:
    """Fields by name, and the text that the fact alone stands for."""

    def __init__(self, where: str, fields: Mapping[str, Any], text: str = ""):
        self._where, self._known, self._text = where, fields, text

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._known:
            raise UserError(f"{self._where} has no field '{name}'{nearest(name, self._known)}")
        return self._known[name]

    def __str__(self) -> str:
        if not self._text:
            raise UserError(f"{self._where} has several fields: {', '.join(self._known)}")
        return self._text


@dataclass(frozen=True)
class Study:
    """The runs of a results folder, those with another outcome elsewhere apart, and its tables."""

    folder: Path
    every_run: pd.DataFrame
    runs: pd.DataFrame
    tables: Sequence[Table]

    def table(self, name: str) -> Table:
        tables = {table.spec.name: table for table in self.tables}
        if name not in tables:
            raise UserError(f"there is no table '{name}'{nearest(name, tables)}")
        return tables[name]

    def column(self, table: str, column: str) -> tuple[Table, str]:
        """A table and one of its columns; of a table that has one, this."""
        found = self.table(table)
        columns = found.columns
        if not column and len(columns) > 1:
            raise UserError(f"{table} has several columns, name one: {', '.join(columns)}")
        column = column or columns[0]
        if column not in columns:
            raise UserError(f"{table} has no column '{column}'{nearest(column, columns)}")
        return found, column

    def cell(self, table: str, row: str, column: str) -> tuple[Table, str, Cell]:
        """A table, its column, and what the row has there."""
        found, column = self.column(table, column)
        if row not in found.rows.index:
            raise UserError(f"{table} has no row '{row}'{nearest(row, found.rows.index)}")
        if (row, column) not in found.cells.index:
            raise UserError(f"{table} has nothing of the row '{row}' in the column '{column}'")
        return found, column, found.cell(row, column)

    def lines(self, file: str, where: Mapping[str, Any]) -> pd.DataFrame:
        """The lines of a CSV or JSON Lines file of the folder that meet all conditions."""
        path = self.folder / file
        if not path.resolve().is_relative_to(self.folder.resolve()) or not path.is_file():
            raise UserError(f"there is no file '{file}' in {self.folder}")
        return lines_of(_read(path), where, file)


def lines_of(frame: pd.DataFrame, where: Mapping[str, Any], what: str) -> pd.DataFrame:
    """Some lines of a frame, at least one."""
    found = frame
    for key, value in where.items():
        if key not in found:
            raise UserError(f"{what} has no '{key}'{nearest(key, [*found])}")
        found = found[found[key].map(str) == str(value)]
    if found.empty:
        raise UserError(f"{what}: no line has {spelt(where)}")
    return found


def line_of(frame: pd.DataFrame, where: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The one line of a frame that meets all conditions."""
    lines = lines_of(frame, where, what)
    if len(lines) > 1:
        raise UserError(f"{what}: {len(lines)} lines have {spelt(where)}, not one")
    return {str(key): value for key, value in lines.iloc[0].items()}


def spelt(where: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in where.items())


def _read(path: Path) -> pd.DataFrame:
    if path.name in KEPT:
        return pd.DataFrame(KEPT[path.name](path))
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        return pd.DataFrame([*csv.DictReader(text.splitlines())])
    return pd.DataFrame([json.loads(line) for line in text.splitlines() if line])
