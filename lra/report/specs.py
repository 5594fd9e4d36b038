"""The tables that `lra table --write` makes: tables.yaml read and checked, records selected."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lra.base import groups
from lra.base.config import UserError
from lra.report.table import setting_of
from lra.results.record import Record

SPECS = Path(__file__).with_name("tables.yaml")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSpec:
    """One entry of tables.yaml, which explains the fields."""

    name: str
    title: str
    records: str = ""
    where: dict[str, Any] = dataclasses.field(default_factory=dict)
    vary: list[str] = dataclasses.field(default_factory=list)
    columns: str = ""
    choose: str = ""
    published: str | None = None
    at_least: int = 1
    caveat: str = ""
    speed: bool = True
    effects: bool = False
    together: list[str] = dataclasses.field(default_factory=list)
    against: str = ""


def specs(results: Path) -> list[TableSpec]:
    """The entries of tables.yaml in a results folder, or those of the file beside this module."""
    path = results / "tables.yaml"
    path = path if path.exists() else SPECS
    schema = OmegaConf.structured(TableSpec)
    try:
        listed = yaml.safe_load(path.read_text(encoding="utf-8"))
        merged = [OmegaConf.merge(schema, entry) for entry in listed]
        entries: list[Any] = [OmegaConf.to_object(entry) for entry in merged]
    except (TypeError, ValueError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path} is not a list of tables: {reason}") from error
    for spec in entries:
        if spec.together and not spec.effects:
            raise UserError(f"{path}: table '{spec.name}' has `together`, which needs `effects`")
    twice = {s.name for s in entries if [t.name for t in entries].count(s.name) > 1}
    unknown = sorted({s.against for s in entries} - {s.name for s in entries} - {""})
    if unknown:
        raise UserError(f"{path} sets a table against '{unknown[0]}', which it does not have")
    if twice:
        raise UserError(f"{path} has two tables named {', '.join(sorted(twice))}")
    return entries


def select(records: Sequence[Record], where: Mapping[str, Any]) -> list[Record]:
    """The records that meet every condition; UserError for a key that no record has."""
    attentions = set(groups.names("attention")) | {r["attention.name"] for r in records}
    conditions = [_condition(key, value, attentions, records) for key, value in where.items()]
    return [r for r in records if all(holds(r) for holds in conditions)]


def _condition(
    key: str, allowed: Any, attentions: set[str], records: Sequence[Record]
) -> Callable[[Record], bool]:
    """A test of one condition: `luna.M: 8` is one for luna's runs only, any other key is
    a fact or a setting of every run."""
    name, _, option = key.partition(".")
    owner = name if option and name in attentions else None
    fact = f"attention.{option}" if owner else key
    optional = fact.startswith("attention.")  # an option that other attentions lack
    if records and not optional and all(_fact(r, fact) is None for r in records):
        raise UserError(
            f"no record has the fact '{key}' that a table names in its `where`: check its spelling"
        )

    def holds(record: Record) -> bool:
        if owner is not None and record["attention.name"] != owner:
            return True
        value = _fact(record, fact)
        return value in allowed if isinstance(allowed, list) else value == allowed

    return holds


def _fact(record: Record, key: str) -> Any:
    value = record.get(key)
    value = setting_of(record, key) if value is None else value
    return value.get("name") if isinstance(value, dict) else value  # attention: luna
