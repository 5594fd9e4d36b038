"""The tables that `lra table --write` makes: tables.yaml read and checked, runs selected."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from lra.base import groups
from lra.base.errors import UserError, readable, refuse_steering
from lra.base.yaml_data import read_yaml
from lra.results.record import SUBMITTED

SPECS = Path(__file__).with_name("tables.yaml")


class TableSpec(BaseModel):
    """One entry of tables.yaml, which explains the fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^\w[\w.-]*$")]  # of its files: never a path
    title: str
    records: str = ""
    where: dict[str, Any] = {}
    vary: list[str] = []
    columns: str = ""
    choose: str = ""
    published: str | None = None
    caveat: str = ""
    speed: bool = True
    effects: bool = False
    rungs: bool = False
    together: list[str] = []
    against: str = ""
    findings: dict[str, str] = {}
    words: dict[str, str] = {}
    overview: dict[str, str] = {}
    needs: dict[str, str] = {}


def specs(results: Path) -> list[TableSpec]:
    """The entries of tables.yaml in a results folder, or those of the file beside this module."""
    path = results / "tables.yaml"
    path = path if path.exists() else SPECS
    with readable(path, "lra/report/tables.yaml explains the fields"):
        listed = read_yaml(path)
        entries = TypeAdapter(list[TableSpec]).validate_python(listed, strict=True)
        refuse_steering(listed)
        names = [spec.name for spec in entries]
        for spec in entries:
            if names.count(spec.name) > 1:
                raise ValueError(f"two tables are named {spec.name}")
            if spec.together and not spec.effects:
                raise ValueError(f"{spec.name} has `together`, which needs `effects`")
            if lost := [column for column in spec.needs if column not in spec.overview]:
                raise ValueError(f"{spec.name} needs '{lost[0]}', which is not in its overview")
            if spec.against and spec.against not in names:
                raise ValueError(f"{spec.name} is set against '{spec.against}', which is no table")
    return entries


def below(runs: pd.DataFrame, place: Path) -> pd.Series:
    """Whether the record of each run lies in this folder, or in the file of this name."""
    place = place.resolve()
    inside = {
        path: Path(path).resolve().with_suffix("").is_relative_to(place)
        for path in runs["path"].unique()
    }
    return runs["path"].map(inside).astype(bool)


def taken(runs: pd.DataFrame, folder: Path, records: str) -> pd.DataFrame:
    """The runs of a file or a folder in a folder of records. Without a name all of them, but those
    that others sent: they would change tables that nobody has looked at."""
    if records:
        return runs[below(runs, folder / records)]
    return runs[~below(runs, folder / SUBMITTED)]


def select(runs: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """The runs that meet every condition; UserError for a key that no run has. `luna.M: 8` is a
    condition for luna's runs only, any other key is a column of every run (docs/python.md)."""
    methods = {*groups.names("attention"), *runs["attention"]}
    for key, allowed in where.items():
        name, _, option = key.partition(".")
        of_one = bool(option) and name in methods  # a condition for one method's runs
        column = f"attention.{option}" if of_one else key
        column = f"{key}.name" if column not in runs and f"{key}.name" in runs else column
        values = runs[column] if column in runs else pd.Series(None, index=runs.index, dtype=object)
        # An option of an attention may be one that the others lack.
        if len(runs) and not column.startswith("attention.") and values.isna().all():
            raise UserError(
                f"no record has the fact '{key}' that a table names in its `where`: check its "
                "spelling (docs/python.md)"
            )
        wanted = allowed if isinstance(allowed, list) else [allowed]
        holds = values.isin([*wanted, "none"] if None in wanted else wanted)
        runs = runs[holds | (runs["attention"] != name) if of_one else holds]
    return runs
