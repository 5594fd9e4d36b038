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
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from lra.config import UserError
from lra.disk import disk_errors, write_atomically
from lra.runs import SCHEMA_VERSION, identity_of

CONVERSIONS = "convert"  # the folder of conversions, below one of runs or of records
Key = tuple[str, int]  # identity and seed: two records of one key are the same run

FACTS: dict[str, type | tuple[type, ...]] = {
    "identity": str,
    "task": str,
    "attention.name": str,
    "model": str,
    "protocol.name": str,
    "protocol.version": int,
    "budget": (int, float),
    "seed": int,
    "steps": int,
    "batch": int,
    "compute.parameters": int,
    "compute.flops": int,
    "data.fingerprint": str,
    "data.source": str,
    "test.accuracy": (int, float),
    "test.examples": int,
    "test.select": str,
    "steps_per_second": (int, float),
    "peak_memory_mib": (int, float),
    "precision": str,
    "machine.device": str,
    "times.finished": str,
    "settings.attention.name": str,
    "settings.task.name": str,
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
    def name(self) -> str:
        """Where an export puts it, which is also how tables cite it."""
        f = self.facts
        folder = f"{f['task']}/{f['protocol']['name']}/{f['model']}/{f['attention']['name']}"
        return f"{folder}/{f['identity']}-seed-{f['seed']}.json"


def find(facts: Any, key: str, default: Any = None) -> Any:
    for part in key.split("."):
        if not isinstance(facts, dict) or part not in facts:
            if default is KeyError:
                raise KeyError(key)
            return default
        facts = facts[part]
    return facts


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
    return min(a, b, key=lambda r: (r["times.finished"], -len(r["curve"])))


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
    facts = _json(path)
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


def _json(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"record {path} is damaged: {error}") from error
    if not isinstance(facts, dict):
        raise UserError(f"record {path} is no record: it holds a {type(facts).__name__}")
    return facts


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
    rows = csv.DictReader(io.StringIO(metrics.read_text()))
    return [[int(r["step"]), float(r["dev_accuracy"])] for r in rows if r.get("dev_accuracy")]


def _check(record: Record) -> None:
    facts, where = record.facts, f"record {record.path}"
    if facts.get("schema") != SCHEMA_VERSION or facts.get("status") != "finished":
        raise UserError(
            f"{where} is foreign: schema {facts.get('schema')}, status {facts.get('status')}; "
            f"expected schema {SCHEMA_VERSION}, status finished"
        )
    for key, kind in FACTS.items():
        value = record.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise UserError(f"{where} is damaged: {key} is {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{where} is damaged: {key} is {value}")
    if not 0 <= record.accuracy <= 1:
        raise UserError(f"{where} is damaged: test.accuracy is {record.accuracy}")
    for part in record.name.split("/"):
        if not re.fullmatch(r"\w[\w.-]*", part):
            raise UserError(f"{where} is foreign: {part!r} is no name of a task or method")
    points = facts.get("curve")
    if not isinstance(points, list) or not all(_is_point(p) for p in points):
        raise UserError(f"{where} is damaged: its curve is no list of [step, accuracy]")
    expected = identity_of(facts["settings"], facts["data"]["fingerprint"])
    if facts["identity"] != expected:
        raise UserError(
            f"{where} is damaged or was edited: it says run {facts['identity']}, its settings and "
            f"data are those of run {expected}"
        )
    said = (facts["attention"]["name"], facts["task"], facts["budget"])
    settings = facts["settings"]
    if said != (settings["attention"]["name"], settings["task"]["name"], settings.get("budget")):
        raise UserError(f"{where} is damaged or was edited: {said} are not its settings")


def _is_point(point: Any) -> bool:
    return (
        isinstance(point, Sequence)
        and len(point) == 2
        and all(isinstance(x, int | float) and math.isfinite(x) for x in point)
    )


def _outcome(record: Record) -> tuple[float, float]:
    return record.accuracy, record.get("test.loss")
