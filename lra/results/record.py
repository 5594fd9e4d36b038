"""Records: what finished runs leave behind, in a folder of runs or exported to be committed.

There are two kinds. A *training* run is one attention trained on one task; a *conversion* is a run
with stages (teacher, swap, stage 1, stage 2) that ends with a score. Both have settings, an
identity (the hash of those settings and of the data's fingerprint) and a seed.

Records that were exported are lines of a file, `<sweep>.jsonl`: the result, the settings, the curve
of dev accuracy, and a digest of these. If somebody edits a number, the digest no longer fits; if
somebody edits a setting, the identity does not either. Beside it lie the answers to every test
example (lra/results/packed.py), from which lra/results/audit.py recomputes the numbers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lra.base.code import UNKNOWN
from lra.base.config import UserError, readable
from lra.results import schema
from lra.results.packed import read_packed
from lra.results.schema import CONVERSION, TRAINING
from lra.runs.answers import Answers, read_answers
from lra.runs.folder import RESULT, digest, read_metrics
from lra.settings.experiment import identity_of

# Identity, code, seed and attempt: two records of one key are the same run.
Key = tuple[str, str, int, int]

STAGES = ("teacher", "swap", "stage1", "best", "last")  # of a conversion's scores, in order


@dataclasses.dataclass(frozen=True)
class Record:
    """One finished run."""

    facts: dict[str, Any]  # result.json with `settings` (and `curve`) added
    path: Path  # of the file it was read from

    def get(self, key: str, default: Any = None) -> Any:
        """Look up a fact by its dotted name, such as `settings.protocol.recipe.lr`."""
        return schema.find_fact(self.facts, key, default)

    def __getitem__(self, key: str) -> Any:
        return schema.find_fact(self.facts, key, KeyError)

    @property
    def kind(self) -> str:
        return _kind(self.facts)

    @property
    def key(self) -> Key:
        return self.facts["identity"], self.code, self.facts["seed"], self.get("attempt", 1)

    @property
    def code(self) -> str:
        """Return the hash of the code; `a+b` if a run begun by code a was ended by code b."""
        return "+".join(self.get("codes") or [UNKNOWN])

    @property
    def attention(self) -> str:
        return self["attention.name"]

    @property
    def score(self) -> float:
        """Return percent: the test accuracy of a training run, the dev score of a conversion."""
        return 100 * (self["test.accuracy"] if self.kind == TRAINING else self["score"])

    @property
    def floor(self) -> float | None:
        """Return the score in percent of always giving one answer, if the record has it."""
        floor = self.get("data.majority" if self.kind == TRAINING else "floor")
        return None if floor is None else 100 * floor

    @property
    def revision(self) -> str:
        """Return the code's revision, abbreviated, with `+changes` if some were not committed."""
        git = self.get("git.revision")
        return "unknown" if not git else git[:10] + ("+changes" if self.get("git.dirty") else "")

    @cached_property
    def finished(self) -> datetime | None:
        when = self.get("times.finished")
        return None if when is None else datetime.fromisoformat(when)

    @property
    def run(self) -> str:
        """Return `<identity>-<code>-seed-<n>`, as tables cite it."""
        identity, code, seed, attempt = self.key
        code = "" if code == UNKNOWN else f"-{code}"
        return f"{identity}{code}-seed-{seed}" + (f"-attempt-{attempt}" if attempt > 1 else "")

    @property
    def order(self) -> tuple[str, ...]:
        """Return what records are sorted by."""
        protocol = self.get("protocol.name") or ""
        return self.kind, self["task"], protocol, self["model"], self.attention, self.run

    @property
    def where(self) -> str:
        """Return the place of the record, for messages."""
        return f"{self.path}, run {self.run}" if self.path.suffix == ".jsonl" else str(self.path)

    @property
    def folder(self) -> Path:
        if self.path.name != RESULT:
            raise UserError(f"{self.where} is a record alone: give the folder of the run itself")
        return self.path.parent

    @cached_property
    def answers(self) -> Answers | None:
        """Return the answers to the examples that gave the score, if there are any; UserError if
        those in the file are not of this record."""
        predictions, labels = self.get("predictions"), self.get("labels")
        if predictions and labels:  # a conversion holds them itself
            split = next(iter(labels))
            return Answers(np.array(predictions[split]), np.array(labels[split]))
        in_folder = self.path.name == RESULT
        file = self.path.with_name("answers.npz") if in_folder else self.path.with_suffix(".npz")
        packed = self.path.suffix == ".jsonl"
        if self.get("answers.packed" if packed else "answers") is None or not file.exists():
            return None
        if packed:
            try:
                return read_packed(file, self.run, self["answers"])
            except UserError as error:
                raise UserError(f"{self.where}: {error}") from error
        stored = read_answers(file)
        if stored.digest != self["answers.digest"]:
            raise UserError(f"{file} is damaged or not of the record beside it")
        return stored


def load_records(folders: Iterable[str | Path], kind: str | None = None) -> list[Record]:
    return unique_runs(read_all(folders), kind)


def read_all(places: Iterable[str | Path]) -> list[Record]:
    """Read every record in these files and folders, a run as often as it is there."""
    records: list[Record] = []
    for place in map(Path, places):
        if not place.exists():
            raise UserError(f"{place} does not exist; the first run makes it: lra train")
        for path in paths(place) if place.is_dir() else [place]:
            if path.suffix == ".jsonl":
                records += read_sweep(path)
            elif (record := read_record(path)) is not None:
                records.append(record)
    return records


def unique_runs(records: Iterable[Record], kind: str | None = None) -> list[Record]:
    """Return each run once (of one kind), sorted."""
    by_key: dict[Key, Record] = {}
    for record in records:
        if kind in (None, record.kind):
            by_key[record.key] = earliest(by_key.get(record.key), record)
    return sorted(by_key.values(), key=lambda r: r.order)


def earliest(a: Record | None, b: Record) -> Record:
    """Choose of two records of one run the one that finished first, so that nobody can repeat a
    run until they like its number; of equal times the one with the longer curve. If a time is
    missing it is `a`, which was there before."""
    if a is None:
        return b
    if a.finished is None or b.finished is None:
        return a
    return min(a, b, key=lambda r: (r.finished, -len(r.get("curve", ()))))


def first_attempts(records: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """Return of every run the attempt that finished first, which tables show, and the others."""
    by_run: dict[tuple[str, str, int], list[Record]] = {}
    for record in records:
        by_run.setdefault(record.key[:3], []).append(record)
    for attempts in by_run.values():
        attempts.sort(key=lambda r: (r.finished is None, r.finished, r.key))
    every = by_run.values()
    return [a[0] for a in every], [repeated for a in every for repeated in a[1:]]


def paths(folder: Path) -> list[Path]:
    """List the files of records: of runs, of sweeps, and of versions that exported one a run."""
    patterns = (RESULT, "*.jsonl", "*-seed-*.json")
    return sorted(p for pattern in patterns for p in folder.rglob(pattern) if p.is_file())


def read_sweep(path: Path) -> list[Record]:
    """Read and check the records of a file with one a line."""
    with readable(path, "it holds no records"):
        lines = path.read_text(encoding="utf-8").split("\n")
    records = []
    for number, text in enumerate(lines, 1):
        if not text:
            continue
        facts = schema.facts_of(text, f"record {path}, line {number}")
        run = f"{facts.get('identity')}-seed-{facts.get('seed')}"
        where = f"record {path}, line {number}, run {run}"
        if facts.get("digest") != line_digest(facts):
            raise UserError(f"{where} is damaged or was edited: its digest does not fit")
        schema.check_record(where, facts, _kind(facts))
        records.append(Record(facts, path))
    return records


def line_of(facts: dict[str, Any]) -> str:
    """Write a record as one line, with its digest."""
    return _compact(facts | {"digest": line_digest(facts)})


def line_digest(facts: dict[str, Any]) -> str:
    content = {key: value for key, value in facts.items() if key != "digest"}
    return hashlib.sha256(_compact(content).encode()).hexdigest()[:16]


def _compact(facts: dict[str, Any]) -> str:
    return json.dumps(facts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def read_record(path: Path) -> Record | None:
    """Read and check the record of a run's folder; None for a teacher: it is no conversion."""
    facts = schema.read_facts(path)
    if path.name != RESULT:  # exported by an earlier version
        if facts.get("digest") != digest(facts):
            raise UserError(f"record {path} is damaged or was edited: its digest does not fit")
    else:
        conversion = _kind(facts) == CONVERSION
        made = facts.pop("digest", None)
        if not conversion and "codes" in facts and made != digest(facts):
            raise UserError(f"{path} was edited after its run: its digest no longer fits")
        if conversion and facts.get("attention") is None:
            return None
        facts = _conversion(facts, path) if conversion else facts | _beside(path)
    record = Record(facts, path)
    schema.check_record(f"record {path}", facts, record.kind)
    return record


def _kind(facts: dict[str, Any]) -> str:
    return CONVERSION if "scores" in facts else TRAINING


def _beside(path: Path) -> dict[str, Any]:
    """Read the settings and the curve from the other files in a training run's folder."""
    config, metrics = path.with_name("config.yaml"), path.with_name("metrics.csv")
    with readable(config, "a record needs its settings"):
        settings = yaml.safe_load(config.read_text(encoding="utf-8"))["settings"]
    with readable(metrics, "remove it: a record may be without its curve"):
        rows = [row for row in read_metrics(metrics) if row.get("dev_accuracy")]
        curve = [[int(row["step"]), float(row["dev_accuracy"])] for row in rows]
    return {"settings": settings, "curve": curve}


def _conversion(result: dict[str, Any], path: Path) -> dict[str, Any]:
    """Give the result of luna.convert.pipeline the names that all records use. Its identity comes
    from contents (the teacher's weights, not their folder), so it is the same on every machine."""
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
