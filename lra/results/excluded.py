"""Records that no table shows, each with its reason: excluded.yaml of a folder of results.

- run: 16338e8c8bf3-e009ab3a-seed-1     # one run; or `identity`: the run with all its seeds
  reason: why, in one sentence
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from lra.base.errors import printable, readable, refuse_steering
from lra.base.yaml_data import read_yaml
from lra.runs.facts import Name, RunName

FILE, RECORDS = "excluded.yaml", "records"  # side by side


class Excluded(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    run: RunName | None = None
    identity: Name | None = None
    reason: Annotated[str, Field(min_length=10, max_length=300, pattern=r"^[^\n]+$")]

    @model_validator(mode="after")
    def _names_one(self) -> Excluded:
        if (self.run is None) == (self.identity is None):
            raise ValueError("name a run or an identity: one of the two")
        return self


class Named(Protocol):
    """What a record has."""

    @property
    def path(self) -> Path: ...
    @property
    def run(self) -> str: ...
    def __getitem__(self, fact: str) -> Any: ...


N = TypeVar("N", bound=Named)


def without_excluded(records: Sequence[N], *, quiet: bool = False) -> list[N]:
    """Leave the listed records out; a line for each reason says how many, but with `quiet`."""
    found = [_reason_of(record) for record in records]
    for (file, reason), n in Counter(listed for listed in found if listed).items():
        if not quiet:
            line = f"{n} record{'s' * (n > 1)} left out, {_from_here(file)}: {reason}"
            print(printable(line), file=sys.stderr)
    return [record for record, listed in zip(records, found, strict=True) if listed is None]


def _reason_of(record: Named) -> tuple[Path, str] | None:
    """Find the list that leaves out a record, and the reason in it."""
    for folder in record.path.absolute().parents:
        if folder.name == RECORDS and (file := folder.with_name(FILE)).exists():
            status = file.stat()
            listed = _read(file, status.st_mtime_ns, status.st_size)
            if reason := listed.get(record.run) or listed.get(record["identity"]):
                return file, reason
    return None


def _from_here(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


@lru_cache(maxsize=16)
def _read(path: Path, *version: int) -> Mapping[str, str]:
    """Read the reasons by the run or the identity, in this version of the file."""
    with readable(path, "each entry has a `run` or an `identity`, and a `reason`"):
        listed = read_yaml(path) or []
        refuse_steering(listed)
        entries = TypeAdapter(list[Excluded]).validate_python(listed, strict=True)
        reasons = {entry.run or entry.identity or "": entry.reason for entry in entries}
        if len(reasons) < len(entries):
            raise ValueError("a run is named twice")
    return reasons
