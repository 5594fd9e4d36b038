"""Records: what finished runs left behind, in a runs folder or exported to be committed.

An exported record is one file, `<task>/<protocol>/<model>/<attention>/<identity>-seed-<n>.json`:
the run's result.json, its settings, its curve of dev accuracy, and a digest of all that. The
identity is the hash of the settings and of the data's fingerprint (lra/runs.py): a record whose
settings were changed is no longer the run that it says it is.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from lra import data
from lra.config import UserError
from lra.disk import disk_errors, write_atomically
from lra.report.facts import Kind, check, find, flag, group, number, share, text, time, whole, word
from lra.report.facts import read as facts_of
from lra.runs import SCHEMA_VERSION, identity_of

CONVERSIONS = "convert"  # the folder of conversions, below one of runs or of records
Key = tuple[str, int]  # identity and seed: two records of one key are the same run

FACTS: dict[str, Kind] = {
    "identity": word,
    "task": word,
    "attention.name": word,
    "model": word,
    "protocol.name": word,
    "protocol.version": whole,
    "budget": number,
    "seed": whole,
    "steps": whole,
    "batch": whole,
    "compute.parameters": number,
    "compute.flops": number,
    "?compute.verdict": text,
    "?compute.exempt": text,
    "?compute.budget": group,
    "?compute.budget.reference": text,
    "?compute.budget.parameters": number,
    "?compute.budget.flops": number,
    "data.fingerprint": word,
    "data.source": text,
    "?data.provenance": text,
    "?data.majority": share,
    "?data.options": group,
    "?dev.accuracy": share,
    "test.accuracy": share,
    "test.examples": whole,
    "test.select": text,
    "?test.dead_rows": number,
    "?test_last.accuracy": share,
    "steps_per_second": number,
    "peak_memory_mib": number,
    "?seconds.training": number,
    "precision": text,
    "machine.device": text,
    "?machine.threads": whole,
    "?machine.processes": whole,
    "?versions": group,
    "?git.revision": word,
    "?git.dirty": flag,
    "times.finished": time,
    "settings": group,
    "settings.attention": group,
    "settings.protocol": group,
    "?settings.protocol.recipe": group,
}
# Facts that the settings decide: a result that says otherwise is not theirs.
DECIDED = {
    "task": "task.name",
    "data.source": "task.source",
    "attention": "attention",
    "model": "model.name",
    "protocol.name": "protocol.name",
    "protocol.version": "protocol.version",
    "budget": "budget",
    "steps": "protocol.recipe.steps",
    "batch": "protocol.recipe.batch",
    "precision": "precision",
}


@dataclasses.dataclass(frozen=True)
class Record:
    """One finished run. `facts` is its result.json with `settings` and `curve` added."""

    facts: dict[str, Any]
    path: Path  # where it was read

    def get(self, key: str, default: Any = None) -> Any:
        """A fact by its dotted name: `protocol.name`, `settings.protocol.recipe.lr`."""
        return find(self.facts, key, default)

    def __getitem__(self, key: str) -> Any:
        return find(self.facts, key, KeyError)

    @property
    def key(self) -> Key:
        return self.facts["identity"], self.facts["seed"]

    @property
    def accuracy(self) -> float:
        return self.facts["test"]["accuracy"]

    @cached_property
    def finished(self) -> datetime:
        return datetime.fromisoformat(self["times.finished"])

    @cached_property
    def name(self) -> str:
        """Where an export puts it, which is also how tables cite it."""
        f = self.facts
        folder = f"{f['task']}/{f['protocol']['name']}/{f['model']}/{f['attention']['name']}"
        return f"{folder}/{f['identity']}-seed-{f['seed']}.json"


def load(folders: Iterable[str | Path]) -> list[Record]:
    """Every record below the folders, each run once; a damaged or foreign one is an error."""
    kept: dict[Key, Record] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UserError(f"{folder} is no folder of records; train: python train.py")
        for path in paths(folder):
            record = read(path)
            kept[record.key] = first_of(kept.get(record.key), record)
    return sorted(kept.values(), key=lambda r: r.name)


def first_of(a: Record | None, b: Record) -> Record:
    """Of two records of one run: the one that finished first, so that no run is repeated until
    its number pleases; then the one of the better preserved curve."""
    if a is None:
        return b
    return min(a, b, key=lambda r: (r.finished, -len(r["curve"])))


def paths(folder: Path) -> Iterator[Path]:
    """Results of runs and exported records below a folder; conversions are not among them."""
    yield from (path for path in everything(folder) if not is_conversion(path, folder))


def everything(folder: Path) -> list[Path]:
    exported = (p for p in folder.rglob("*-seed-*.json") if p.is_file())
    return sorted([*folder.rglob("result.json"), *exported])


def is_conversion(path: Path, folder: Path) -> bool:
    """Whether a file below a folder of runs or records is one of `convert.py` (converted.py)."""
    return CONVERSIONS in (folder.name, *path.relative_to(folder).parts[:-1])


def read(path: Path) -> Record:
    """A checked record; UserError names the file and what is wrong with it."""
    facts = facts_of(path)
    if path.name == "result.json":
        facts |= {"settings": _settings(path.parent), "curve": _curve(path.parent / "metrics.csv")}
    elif facts.get("digest") != digest(facts):
        raise UserError(f"record {path} is damaged or was edited: its digest does not fit")
    record = Record(facts, path)
    _check(record)
    return record


def export(
    sources: Iterable[str | Path], target: Path, *, some: bool = True
) -> dict[str, list[Record]]:
    """Copy the records of run folders (or of other exports) to `target`, all or none of them; that
    there are none is an error if there must be `some`.

    Returns them as new, known (already there) and other (there, but with another outcome: the
    first to finish stands).
    """
    incoming = load(sources)
    if some and not incoming:
        raise UserError(f"no finished run below {', '.join(map(str, sources))}")
    there = {r.key: r for r in (load([target]) if target.is_dir() else [])}
    sorted_out: dict[str, list[Record]] = {"new": [], "known": [], "other": []}
    for record in incoming:
        old = there.get(record.key)
        kept = first_of(old, record)
        same = old is not None and _outcome(old) == _outcome(record)
        sorted_out["new" if old is None else "known" if same else "other"].append(record)
        if kept is record and (old is None or not same):
            place = target / record.name
            with disk_errors(place):
                place.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(place, dump(record.facts).encode())
    return sorted_out


def dump(facts: dict[str, Any]) -> str:
    """The text of an exported record."""
    return _text(facts | {"digest": digest(facts)})


def digest(facts: dict[str, Any]) -> str:
    content = {key: value for key, value in facts.items() if key != "digest"}
    return hashlib.sha256(_text(content).encode()).hexdigest()[:16]


def _text(facts: dict[str, Any]) -> str:
    return json.dumps(facts, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


# ---------------------------------------------------------------------- reading and checking


def _settings(folder: Path) -> Any:
    try:
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        return config["settings"]
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        raise UserError(
            f"record {folder / 'result.json'} has no readable config.yaml beside it ({error})"
        ) from error


def _curve(metrics: Path) -> list[list[float]]:
    """Dev accuracy by step. A run is judged by its result: without metrics it has no curve."""
    if not metrics.exists():
        return []
    try:
        rows = csv.DictReader(io.StringIO(metrics.read_text(encoding="utf-8")))
        return [[int(r["step"]), float(r["dev_accuracy"])] for r in rows if r.get("dev_accuracy")]
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise UserError(f"the curve {metrics} is damaged: {error!r}") from error


def _check(record: Record) -> None:
    facts, where = record.facts, f"record {record.path}"
    if facts.get("schema") != SCHEMA_VERSION or facts.get("status") != "finished":
        raise UserError(
            f"{where} is foreign: schema {facts.get('schema')}, status {facts.get('status')}; "
            f"expected schema {SCHEMA_VERSION}, status finished"
        )
    check(where, facts, FACTS)
    if facts["task"] not in data.names():
        raise UserError(f"{where} is foreign: there is no task '{facts['task']}'")
    points = facts.get("curve")
    if not isinstance(points, list) or not all(_is_point(p) for p in points):
        raise UserError(f"{where} is damaged: its curve is no list of [step, accuracy]")
    expected = identity_of(facts["settings"], facts["data"]["fingerprint"])
    if facts["identity"] != expected:
        raise UserError(
            f"{where} is damaged or was edited: it says run {facts['identity']}, its settings and "
            f"data are those of run {expected}"
        )
    for fact, setting in DECIDED.items():
        said, decided = record.get(fact), record.get(f"settings.{setting}")
        if said != decided:
            raise UserError(
                f"{where} is damaged or was edited: its {fact} is {said}, that of its settings is "
                f"{decided}"
            )


def _is_point(point: Any) -> bool:
    return isinstance(point, list) and len(point) == 2 and all(map(number, point))


def _outcome(record: Record) -> tuple[float, str]:
    return record.accuracy, str(record.get("test.loss"))  # two losses that are NaN are alike
