"""Records of conversions (`python convert.py`): a run's result.json with its model and key, or its
export `convert/<task>/<model>/<attention>/<key>-seed-<n>.json`."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lra.config import UserError
from lra.disk import disk_errors, write_atomically
from lra.report.records import CONVERSIONS, digest, dump, everything, is_conversion

SCHEMA = 1
FACTS: dict[str, type | tuple[type, ...]] = {
    "task": str,
    "attention": str,
    "model": str,
    "key": str,
    "options": dict,
    "recipe": dict,
    "seed": int,
    "teacher": str,
    "scores": dict,
    "score": (int, float),
    "floor": (int, float),
    "phi_parameters": int,
}


@dataclasses.dataclass(frozen=True)
class Converted:
    """One finished conversion."""

    facts: dict[str, Any]
    path: Path

    def __getitem__(self, key: str) -> Any:
        return self.facts[key]

    @property
    def score(self) -> float:
        return 100 * self.facts["score"]

    @property
    def teacher_score(self) -> float:
        return 100 * self.facts["scores"]["teacher"]["score"]

    @property
    def floor(self) -> float:
        """Percent, of always giving the same answer."""
        return 100 * self.facts["floor"]

    @property
    def name(self) -> str:
        f = self.facts
        folder = f"{CONVERSIONS}/{f['task']}/{f['model']}/{f['attention']}"
        return f"{folder}/{f['key']}-seed-{f['seed']}.json"


def load(folder: Path) -> list[Converted]:
    """Every conversion below a folder, each once; teachers are no conversions."""
    found: dict[str, Converted] = {}
    for path in everything(folder):
        if not is_conversion(path, folder):
            continue
        record = read(path)
        if record is not None:
            found.setdefault(record.name, record)
    return sorted(found.values(), key=lambda r: r.name)


def read(path: Path) -> Converted | None:
    """A checked record; None for a teacher's; UserError names the file and what is wrong."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"record {path} is damaged: {error}") from error
    if not isinstance(facts, dict) or facts.get("schema") != SCHEMA:
        raise UserError(f"record {path} is foreign: no conversion of schema {SCHEMA}")
    if facts.get("attention") is None:
        return None
    if path.name == "result.json":  # <model>/<attention>/<key>/seed-<n>/result.json
        key, model = path.parents[1].name, path.parents[3].name
        facts |= {"model": model, "key": key}
    elif facts.get("digest") != digest(facts):
        raise UserError(f"record {path} is damaged or was edited: its digest does not fit")
    for name, kind in FACTS.items():
        value = facts.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise UserError(f"record {path} is damaged: {name} is {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"record {path} is damaged: {name} is {value}")
    if not isinstance(facts["scores"].get("teacher", {}).get("score"), int | float):
        raise UserError(f"record {path} is damaged: it has no score of the teacher")
    return Converted(facts, path)


def export(sources: Iterable[str | Path], target: Path) -> tuple[int, int]:
    """Copy conversions to `target`; how many are new, and how many were there before."""
    new = known = 0
    for record in [r for source in map(Path, sources) for r in load(source)]:
        place = target / record.name
        if place.exists():
            known += 1
            continue
        new += 1
        with disk_errors(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, dump(record.facts).encode())
    return new, known
