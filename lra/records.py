"""Records: what finished runs leave behind, in a folder of runs or exported to be committed.

There are two kinds. A *training* run is one attention trained on one task; a *conversion* is a run
with stages (teacher, swap, stage 1, stage 2) that ends with a score. Both have settings that decide
the result, an identity (the hash of those settings and of the data's fingerprint) and a seed.

An exported record is one file, `.../<identity>-seed-<n>.json`: the result, its settings, its curve
of dev accuracy, and a digest of all that. A record whose settings were changed no longer has the
identity that it claims.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
from collections.abc import Iterable
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from lra import data
from lra.config import UserError
from lra.disk import disk_errors, write_atomically
from lra.facts import Kind, check, find, flag, group, number, share, text, time, whole, word
from lra.facts import read as facts_of
from lra.facts import score as score_value
from lra.runs import SCHEMA_VERSION, identity_of

TRAINING, CONVERSION = "training", "conversion"
Key = tuple[str, int]  # identity and seed: two records of one key are the same run

COMMON: dict[str, Kind] = {
    "identity": word,
    "task": word,
    "attention.name": word,
    "model": word,
    "seed": whole,
    "settings": group,
    "settings.attention": group,
    "?versions": group,
    "?git.revision": word,
    "?git.dirty": flag,
}
FACTS: dict[str, dict[str, Kind]] = {
    TRAINING: COMMON
    | {
        "protocol.name": word,
        "protocol.version": whole,
        "budget": number,
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
        "times.finished": time,
        "settings.protocol": group,
        "?settings.protocol.recipe": group,
    },
    CONVERSION: COMMON
    | {
        "settings.recipe": group,
        "?settings.recipe.epochs": whole,
        "settings.teacher": text,
        "?data.fingerprint": text,
        "scores": group,
        "scores.teacher.score": score_value,
        "score": score_value,
        "floor": score_value,
        "?stage1": group,
        "phi_parameters": whole,
        "?train_examples": whole,
        "?predictions": group,
        "?labels": group,
        "?seconds.total": number,
        "?machine.device": text,
        "?times.finished": time,  # the first conversions did not record it
    },
}
# Facts that the settings decide: a result that says otherwise does not belong to them.
DECIDED = {
    TRAINING: {
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
    },
    CONVERSION: {"task": "task", "model": "model", "attention": "attention"},
}
STAGES = ("teacher", "swap", "stage1", "best", "last")  # scores, in the order they are reached


@dataclasses.dataclass(frozen=True)
class Record:
    """One finished run. `facts` is its result.json with `settings` (and `curve`) added."""

    facts: dict[str, Any]
    path: Path  # where it was read

    def get(self, key: str, default: Any = None) -> Any:
        """A fact by its dotted name: `protocol.name`, `settings.protocol.recipe.lr`."""
        return find(self.facts, key, default)

    def __getitem__(self, key: str) -> Any:
        return find(self.facts, key, KeyError)

    @property
    def kind(self) -> str:
        return _kind(self.facts)

    @property
    def key(self) -> Key:
        return self.facts["identity"], self.facts["seed"]

    @property
    def attention(self) -> str:
        return self["attention.name"]

    @property
    def score(self) -> float:
        """Percent: test accuracy of a training run, dev score of a conversion."""
        return 100 * (self["test.accuracy"] if self.kind == TRAINING else self["score"])

    @property
    def floor(self) -> float | None:
        """Percent, of always giving one answer, where it is known."""
        floor = self.get("data.majority" if self.kind == TRAINING else "floor")
        return None if floor is None else 100 * floor

    @property
    def revision(self) -> str:
        """Of the code, abbreviated; it says where the code had changes that were not committed."""
        git = self.get("git.revision")
        return "unknown" if not git else git[:10] + ("+changes" if self.get("git.dirty") else "")

    @cached_property
    def finished(self) -> datetime | None:
        when = self.get("times.finished")
        return None if when is None else datetime.fromisoformat(when)

    @cached_property
    def name(self) -> str:
        """Its path in an export, which is also how tables cite it."""
        f = self.facts
        folders = (
            (f["task"], f["protocol"]["name"], f["model"])
            if self.kind == TRAINING
            else ("convert", f["task"], f["model"])
        )
        return f"{'/'.join(folders)}/{self.attention}/{f['identity']}-seed-{f['seed']}.json"


def load(folders: Iterable[str | Path], kind: str | None = None) -> list[Record]:
    """Every record below the folders (of one kind, if given), each run once; a damaged or foreign
    one is an error."""
    kept: dict[Key, Record] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UserError(f"{folder} does not exist; the first run makes it: lra train")
        for path in paths(folder):
            record = read(path)
            if record is not None and kind in (None, record.kind):
                kept[record.key] = first_of(kept.get(record.key), record)
    return sorted(kept.values(), key=lambda r: r.name)


def first_of(a: Record | None, b: Record) -> Record:
    """The one of two records of the same run that finished first, so that no run is repeated until
    its number pleases; then the one whose curve is better preserved. Where one does not say when it
    finished, `a` stands, which was there before."""
    if a is None:
        return b
    if a.finished is None or b.finished is None:
        return a
    return min(a, b, key=lambda r: (r.finished, -len(r.get("curve", ()))))


def paths(folder: Path) -> list[Path]:
    """Results of runs and exported records below a folder."""
    exported = (p for p in folder.rglob("*-seed-*.json") if p.is_file())
    return sorted([*folder.rglob("result.json"), *exported])


def read(path: Path) -> Record | None:
    """A checked record; None for a teacher's, which is a start and no result. UserError names the
    file and what is wrong with it."""
    facts = facts_of(path)
    if path.name == "result.json":
        conversion = _kind(facts) == CONVERSION
        if conversion and facts.get("attention") is None:
            return None
        facts = _conversion(facts, path) if conversion else facts | _beside(path)
    elif facts.get("digest") != digest(facts):
        raise UserError(f"record {path} is damaged or was edited: its digest does not fit")
    record = Record(facts, path)
    _check(record)
    return record


def export(sources: Iterable[str | Path], target: Path) -> dict[str, list[Record]]:
    """Copy the records of run folders (or of other exports) to `target`, all or none of them.

    Returns them as new, known (already there) and other (there, but with another outcome: the
    first to finish stands).
    """
    incoming = load(sources)
    if not incoming:
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


# ---------------------------------------------------------------------- reading


def _kind(facts: dict[str, Any]) -> str:
    return CONVERSION if "scores" in facts else TRAINING


def _beside(path: Path) -> dict[str, Any]:
    """What stands in the other files of a training run's folder: its settings and its curve."""
    try:
        config = yaml.safe_load(path.with_name("config.yaml").read_text(encoding="utf-8"))
        settings = config["settings"]
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        raise UserError(f"record {path} has no readable config.yaml beside it ({error})") from error
    return {"settings": settings, "curve": _curve(path.with_name("metrics.csv"))}


def _curve(metrics: Path) -> list[list[float]]:
    """Dev accuracy by step. A run is judged by its result: without metrics it has no curve."""
    if not metrics.exists():
        return []
    try:
        rows = csv.DictReader(io.StringIO(metrics.read_text(encoding="utf-8")))
        return [[int(r["step"]), float(r["dev_accuracy"])] for r in rows if r.get("dev_accuracy")]
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise UserError(f"the curve {metrics} is damaged: {error!r}") from error


def _conversion(result: dict[str, Any], path: Path) -> dict[str, Any]:
    """The result of luna.convert.pipeline under the names that all records use. Its identity is
    made of contents (the teacher's weights, not their folder): the same on every machine."""
    facts = dict(result)
    try:
        attention = {"name": facts.pop("attention")} | facts.pop("options")
        settings = {"task": facts["task"], "model": path.parents[3].name, "attention": attention,
                    "recipe": facts.pop("recipe"), "teacher": facts.pop("teacher")}  # fmt: skip
        fingerprint = facts.pop("data", None)
        machine = {"device": facts.pop("device", None), "threads": facts.pop("threads", None)}
        seconds, torch = facts.pop("seconds", None), facts.pop("torch", None)
    except (KeyError, TypeError, IndexError) as error:
        raise UserError(f"record {path} is damaged: {error!r} is missing") from error
    return facts | {
        "identity": identity_of(settings, fingerprint),
        "model": settings["model"],
        "attention": attention,
        "settings": settings,
        "data": {"fingerprint": fingerprint},
        "machine": machine,
        "versions": {"torch": torch} | facts.get("versions", {}),
        "seconds": {"total": seconds},
    }


# ---------------------------------------------------------------------- checking


def _check(record: Record) -> None:
    facts, where = record.facts, f"record {record.path}"
    if facts.get("schema") != SCHEMA_VERSION or facts.get("status") != "finished":
        raise UserError(
            f"{where} is foreign: schema {facts.get('schema')}, status {facts.get('status')}; "
            f"expected schema {SCHEMA_VERSION}, status finished"
        )
    check(where, facts, FACTS[record.kind])
    (_check_training if record.kind == TRAINING else _check_conversion)(where, facts)
    expected = identity_of(facts["settings"], record.get("data.fingerprint"))
    if facts["identity"] != expected:
        raise UserError(
            f"{where} is damaged or was edited: it says run {facts['identity']}, its settings and "
            f"data are those of run {expected}"
        )
    for fact, setting in DECIDED[record.kind].items():
        said, decided = record.get(fact), record.get(f"settings.{setting}")
        if said != decided:
            raise UserError(
                f"{where} is damaged or was edited: its {fact} is {said}, that of its settings is "
                f"{decided}"
            )


def _check_training(where: str, facts: dict[str, Any]) -> None:
    if facts["task"] not in data.names():
        raise UserError(f"{where} is foreign: there is no task '{facts['task']}'")
    points = facts.get("curve")
    if not isinstance(points, list) or not all(_is_point(p) for p in points):
        raise UserError(f"{where} is damaged: its curve is not a list of [step, accuracy]")


def _is_point(point: Any) -> bool:
    return isinstance(point, list) and len(point) == 2 and all(map(number, point))


def _check_conversion(where: str, facts: dict[str, Any]) -> None:
    scores = facts["scores"]
    check(where, facts, {f"scores.{stage}.score": score_value for stage in scores})
    last = next((stage for stage in ("best", "stage1", "swap") if stage in scores), None)
    if last is not None and facts["score"] != scores[last]["score"]:
        raise UserError(f"{where} is damaged or was edited: its score is not that of '{last}'")
    labels, predictions = facts.get("labels") or {}, facts.get("predictions") or {}
    if not all(map(_is_numbers, [*labels.values(), *predictions.values()])) or (
        labels and predictions and _lengths(labels) != _lengths(predictions)
    ):
        raise UserError(f"{where} is damaged: its predictions are not those of its labels")


def _is_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(v, int | float) for v in values)


def _lengths(by_split: dict[str, Any]) -> dict[str, int]:
    return {split: len(values) for split, values in by_split.items()}


def _outcome(record: Record) -> tuple[float, str]:
    return record.score, str(record.get("test.loss"))  # two losses that are NaN are alike
