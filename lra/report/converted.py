"""Records of conversions (`python convert.py`): a run's result.json with its model and key, or its
export `convert/<task>/<model>/<attention>/<key>-seed-<n>.json`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from lra.config import UserError
from lra.disk import disk_errors, write_atomically
from lra.report import facts as kinds
from lra.report.records import CONVERSIONS, digest, dump, everything, is_conversion

SCHEMA = 1
FACTS: dict[str, kinds.Kind] = {
    "task": kinds.word,
    "attention": kinds.word,
    "model": kinds.word,
    "key": kinds.word,
    "options": kinds.group,
    "recipe": kinds.group,
    "?recipe.epochs": kinds.whole,
    "seed": kinds.whole,
    "teacher": kinds.text,
    "?data": kinds.text,
    "scores": kinds.group,
    "scores.teacher.score": kinds.score,
    "score": kinds.score,
    "floor": kinds.score,
    "?stage1": kinds.group,
    "phi_parameters": kinds.whole,
    "?train_examples": kinds.whole,
    "?predictions": kinds.group,
    "?labels": kinds.group,
    "?seconds": kinds.number,
    "?device": kinds.text,
    "?torch": kinds.text,
    "?git.revision": kinds.word,
    "?times.finished": kinds.time,
}
# What two records of one run share: its key is made on its machine, from the teacher's folder.
IDENTITY = ("task", "model", "attention", "options", "recipe", "teacher", "data", "seed")


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

    @cached_property
    def identity(self) -> str:
        return json.dumps([self.facts.get(fact) for fact in IDENTITY], sort_keys=True)

    @cached_property
    def finished(self) -> datetime | None:
        when = kinds.find(self.facts, "times.finished")
        return None if when is None else datetime.fromisoformat(when)

    @property
    def revision(self) -> str:
        """Empty where it was not recorded, as in the first records."""
        return kinds.find(self.facts, "git.revision") or ""

    @property
    def name(self) -> str:
        """Where an export puts it."""
        f = self.facts
        folder = f"{CONVERSIONS}/{f['task']}/{f['model']}/{f['attention']}"
        return f"{folder}/{f['key']}-seed-{f['seed']}.json"


def load(folder: Path) -> list[Converted]:
    """Every conversion below a folder, each run once; teachers are no conversions."""
    found: dict[str, Converted] = {}
    for path in everything(folder):
        if not is_conversion(path, folder):
            continue
        record = read(path)
        if record is not None:
            found[record.identity] = first_of(found.get(record.identity), record)
    return sorted(found.values(), key=lambda r: r.name)


def first_of(a: Converted | None, b: Converted) -> Converted:
    """Of two records of one run: the one that finished first. Early records do not tell when; of
    such a pair the one that was there stands."""
    if a is None:
        return b
    return b if a.finished and b.finished and b.finished < a.finished else a


def read(path: Path) -> Converted | None:
    """A checked record; None for a teacher's; UserError names the file and what is wrong."""
    facts, where = kinds.read(path), f"record {path}"
    if facts.get("schema") != SCHEMA or facts.get("status", "finished") != "finished":
        raise UserError(f"{where} is foreign: no finished conversion of schema {SCHEMA}")
    if facts.get("attention") is None:
        return None
    if path.name == "result.json":  # <model>/<attention>/<key>/seed-<n>/result.json
        key, model = path.parents[1].name, path.parents[3].name
        facts |= {"model": model, "key": key}
    elif facts.get("digest") != digest(facts):
        raise UserError(f"{where} is damaged or was edited: its digest does not fit")
    kinds.check(where, facts, FACTS)
    for stage in facts["scores"]:
        kinds.check(where, facts, {f"scores.{stage}.score": kinds.score})
    last = next((s for s in ("best", "stage1", "swap") if s in facts["scores"]), None)
    if last is not None and facts["score"] != facts["scores"][last]["score"]:
        raise UserError(f"{where} is damaged or was edited: its score is not that of '{last}'")
    if not _are_answers(facts.get("labels") or {}, facts.get("predictions") or {}):
        raise UserError(f"{where} is damaged: its predictions are not those of its labels")
    return Converted(facts, path)


def _are_answers(labels: dict[str, Any], predictions: dict[str, Any]) -> bool:
    """Of each split one number an example, or none at all."""
    lists = [*labels.values(), *predictions.values()]
    if not all(isinstance(x, list) and all(isinstance(v, int | float) for v in x) for x in lists):
        return False
    lengths = ({split: len(values) for split, values in x.items()} for x in (labels, predictions))
    return not labels or not predictions or len({str(sorted(x.items())) for x in lengths}) == 1


def incoming(sources: Iterable[str | Path], target: Path) -> dict[str, list[Converted]]:
    """The conversions of the sources, checked: new to the target, known there, or there with
    another outcome; and those to keep of the new and the other ones."""
    there = {r.identity: r for r in load(target)}
    sorted_out: dict[str, list[Converted]] = {"new": [], "known": [], "other": [], "kept": []}
    for record in [r for source in map(Path, sources) for r in load(source)]:
        old = there.get(record.identity)
        there[record.identity] = kept = first_of(old, record)
        same = old is not None and old["score"] == record["score"]
        sorted_out["new" if old is None else "known" if same else "other"].append(record)
        if kept is record and not same:
            sorted_out["kept"].append(record)
    return sorted_out


def write(records: Iterable[Converted], target: Path) -> None:
    for record in records:
        place = target / record.name
        with disk_errors(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, dump(record.facts).encode())
