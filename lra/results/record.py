"""Records: what finished runs leave behind, in a folder of runs or exported to be committed.

There are two kinds. A *training* run is one attention trained on one task; a *conversion* is a run
with stages (teacher, swap, stage 1, stage 2) that ends with a score. Both have settings, an
identity (the hash of those settings and of the data's fingerprint) and a seed.

Records that were exported are lines of a file, `<sweep>.jsonl`: the result, the settings, the curve
of dev accuracy, and a digest of these; the first line has what all of them share. If somebody edits
a number, the digest no longer fits; if somebody edits a setting, the identity does not either.
Beside it lie the answers to every test example (lra/results/packed.py), from which
lra/results/audit.py recomputes the numbers.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lra.base.code import UNKNOWN
from lra.base.config import UserError, nearest, printable, readable
from lra.results.packed import read_packed
from lra.runs.answers import Answers, read_answers
from lra.runs.folder import RESULT, digest, read_metrics
from lra.runs.schema import CONVERSION, TRAINING, check_record, find_fact, flat, kind_of
from lra.settings.experiment import identity_of

# Identity, code, seed and attempt: two records of one key are the same run.
Key = tuple[str, str, int, int]

STAGES = ("teacher", "swap", "stage1", "best", "last")  # of a conversion's scores, in order
MISSING = object()


@dataclass(frozen=True, repr=False)
class Record:
    """One finished run."""

    facts: dict[str, Any]  # result.json with `settings` (and `curve`) added
    path: Path  # of the file it was read from

    def get(self, key: str, default: Any = None) -> Any:
        """Look up a fact by its dotted name, such as `settings.protocol.recipe.lr`."""
        return find_fact(self.facts, key, default)

    def __getitem__(self, key: str) -> Any:
        if (value := self.get(key, MISSING)) is MISSING:
            names = {name for name, _ in flat(self.facts)}
            raise KeyError(f"this record has no fact '{key}'{nearest(key, names)}")
        return value

    def __repr__(self) -> str:
        return f"<{self['task']}, {self.attention}, seed {self['seed']}: {self.score:.2f} %>"

    @property
    def kind(self) -> str:
        return kind_of(self.facts)

    @property
    def key(self) -> Key:
        return self["identity"], self.code, self["seed"], self.get("attempt", 1)

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
        return 100 * self["test.accuracy" if self.kind == TRAINING else "score"]

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
        if self.kind == CONVERSION:  # holds them itself
            predictions, labels = self.get("predictions"), self.get("labels")
            split = next(iter(labels or ()), None)
            return Answers(np.array(predictions[split]), np.array(labels[split])) if split else None
        packed = self.path.suffix == ".jsonl"
        if self.get("answers.packed" if packed else "answers") is None:
            return None
        file = self.path.with_suffix(".npz") if packed else self.path.with_name("answers.npz")
        if not file.is_file():
            raise UserError(f"{self.where} has answers, but the file that holds them, {file}, is "
                            "not there")  # fmt: skip
        if packed:
            return read_packed(file, self.run, self["answers"])
        stored = read_answers(file)
        if stored.facts() != {key: self[f"answers.{key}"] for key in ("digest", "labels")}:
            raise UserError(f"{file} is damaged or not of the record beside it")
        return stored


# ---------------------------------------------------------------------- reading files and folders


def load_records(
    folders: Iterable[str | Path], kind: str | None = None, *, skip: bool = False
) -> list[Record]:
    """Read each run once (of one kind), sorted. Of a run that is there twice the one that finished
    first counts, so that nobody can repeat a run until they like its number; of equal times the one
    with the longer curve."""
    by_key = defaultdict[Key, list[Record]](list)
    for record in read_all(folders, skip=skip):
        if kind in (None, record.kind):
            by_key[record.key].append(record)
    first = (
        min(same, key=lambda r: (_end(r), -len(r.get("curve", ())))) for same in by_key.values()
    )
    return sorted(first, key=lambda r: r.order)


def read_all(places: Iterable[str | Path], *, skip: bool = False) -> list[Record]:
    """Read every record in these files and folders, a run as often as it is there. With `skip` what
    is damaged is left out, and a line says so."""
    records: list[Record] = []
    for place in map(Path, places):
        if not place.exists():
            raise UserError(f"{place} does not exist; the first run makes it: lra train")
        for path in paths(place) if place.is_dir() else [place]:
            with _damage(skip):
                if path.suffix == ".jsonl":
                    records += read_sweep(path, skip=skip)
                elif (record := read_record(path)) is not None:
                    records.append(record)
    return records


@contextlib.contextmanager
def _damage(skip: bool) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        if not skip:
            raise
        print(printable(f"left out: {error}"), file=sys.stderr)


def first_attempts(records: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """Return of every run the attempt that finished first, which tables show, and the others."""
    by_run = defaultdict[Any, list[Record]](list)
    for record in records:
        by_run[record.key[:3]].append(record)
    every = [sorted(attempts, key=lambda r: (_end(r), r.key)) for attempts in by_run.values()]
    return [a[0] for a in every], [repeated for a in every for repeated in a[1:]]


def _end(record: Record) -> datetime:
    return record.finished or datetime.max.replace(tzinfo=UTC)


def paths(folder: Path) -> list[Path]:
    """List the files of records: those of runs and those of sweeps."""
    return sorted(p for name in (RESULT, "*.jsonl") for p in folder.rglob(name) if p.is_file())


def read_sweep(path: Path, *, skip: bool = False) -> list[Record]:
    """Read and check the records of a file with one a line."""
    with readable(path, "it holds no records"):
        lines = path.read_text(encoding="utf-8").split("\n")
    records: list[Record] = []
    shared: dict[str, Any] = {}  # in the first line, where several runs have it
    for number, text in enumerate(lines, 1):
        where = f"record {path}, line {number}"
        with _damage(skip), readable(where, "export the runs again"):
            facts = json.loads(text or "{}")
            if number == 1 and facts.keys() == {"shared"}:
                shared = facts["shared"]
            elif facts:
                facts = merged(shared, facts)
                where += f", run {facts.get('identity')}-seed-{facts.get('seed')}"[:106]
                if facts.get("digest") != line_digest(facts):
                    raise UserError(f"{where} is damaged or was edited: its digest does not fit")
                check_record(where, facts)
                records.append(Record(facts, path))
    return records


def read_record(path: Path) -> Record | None:
    """Read and check the record of a run's folder; None for a teacher: it is no conversion."""
    where = f"record {path}"
    with readable(where, "remove the folder and run again"):
        facts = json.loads(path.read_text(encoding="utf-8"))
        made = facts.pop("digest", None)
        edited = made != digest(facts)
    if kind_of(facts) == CONVERSION:
        if facts.get("attention") is None:
            return None
        facts = _conversion(facts, path)
    elif edited:
        raise UserError(f"{where} was edited after its run: its digest does not fit")
    else:
        facts |= _beside(path)
    check_record(where, facts)
    return Record(facts, path)


def _beside(path: Path) -> dict[str, Any]:
    """Read the settings and the curve from the other files in a training run's folder."""
    config, metrics = path.with_name("config.yaml"), path.with_name("metrics.csv")
    with readable(config, "a record needs its settings"):
        settings = yaml.safe_load(config.read_text(encoding="utf-8"))["settings"]
        settings = json.loads(json.dumps(settings))
    with readable(metrics, "remove it: a record may be without its curve"):
        rows = [row for row in read_metrics(metrics) if row.get("dev_accuracy")]
        curve = [[int(row["step"]), float(row["dev_accuracy"])] for row in rows]
    return {"settings": settings, "curve": curve}


def _conversion(facts: dict[str, Any], path: Path) -> dict[str, Any]:
    """Give the result of luna.convert.pipeline the names that all records use. Its identity comes
    from contents (the teacher's weights, not their folder), so it is the same on every machine."""
    with readable(path, "it holds no conversion"):
        attention = {"name": facts.pop("attention")} | facts.pop("options")
        settings = {"task": facts["task"], "model": path.parents[3].name, "attention": attention,
                    "recipe": facts.pop("recipe"), "teacher": facts.pop("teacher")}  # fmt: skip
        fingerprint = facts.pop("data", None)
        return facts | {
            "identity": identity_of(settings, fingerprint),
            "model": settings["model"],
            "attention": attention,
            "settings": settings,
            "data": {"fingerprint": fingerprint},
            "machine": {key: facts.pop(key, None) for key in ("device", "threads")},
            "versions": {"torch": facts.pop("torch", None)} | facts.get("versions", {}),
            "seconds": {"total": facts.pop("seconds", None)},
        }


# ---------------------------------------------------------------------- lines of a sweep


def lines_of(records: Sequence[dict[str, Any]]) -> list[str]:
    """Write a line per record, with its digest, without what all share: that is the first line."""
    digested = [facts | {"digest": line_digest(facts)} for facts in records]
    shared, lines = _split(digested) if len(digested) > 1 else ({}, digested)
    return [_compact(line) for line in [*([{"shared": shared}] if shared else []), *lines]]


def _split(groups: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Take apart the facts that all groups have in common, as text: 1 is not 1.0; and the rest of
    each, to which `merged` adds them again."""
    shared, rests = dict[str, Any](), [dict(facts) for facts in groups]
    for key in set.intersection(*map(set, groups)):
        values = [facts[key] for facts in groups]
        if len({_compact(value) for value in values}) == 1:
            shared[key], parts = values[0], [dict[str, Any]()] * len(values)
        elif all(isinstance(value, dict) for value in values):
            shared[key], parts = _split(values)
        if shared.get(key):
            rests = [rest | {key: part} for rest, part in zip(rests, parts, strict=True)]
    shared = {key: value for key, value in shared.items() if value != {}}
    return shared, [{k: v for k, v in r.items() if v != {} or k not in shared} for r in rests]


def merged(shared: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """Add to the facts of a run those that all runs of its sweep share."""
    both = {key: merged(shared[key], value) for key, value in facts.items()
            if isinstance(value, dict) and isinstance(shared.get(key), dict)}  # fmt: skip
    return shared | facts | both


def line_digest(facts: dict[str, Any]) -> str:
    content = {key: value for key, value in facts.items() if key != "digest"}
    return hashlib.sha256(_compact(content).encode()).hexdigest()[:16]


def _compact(facts: Any) -> str:
    return json.dumps(facts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
