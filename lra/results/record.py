"""Records: what finished runs leave behind, in a folder of runs or exported to be committed.

There are two kinds. A *training* run is one attention trained on one task; a *conversion* is a run
with stages (teacher, swap, stage 1, stage 2) that ends with a score. Both have settings, an
identity (the hash of those settings and of the data's fingerprint) and a seed.

A record is `result.json` in the folder of its run, or, exported, a line of a file, `<sweep>.jsonl`,
whose first line has what all of them share. An edited number is noticed by its digest, an edited
setting by its identity too. Beside it lie the answers to every test example (lra/runs/answers.py),
from which lra/results/audit.py recomputes the numbers.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np

from lra.base.code import CHOSEN, UNKNOWN, hash_parts
from lra.base.digests import check_digest, compact, digest
from lra.base.disk import plain_file
from lra.base.errors import UserError, nearest, printable, readable
from lra.base.versions import ATTENTION
from lra.metrics.answers import Answers
from lra.metrics.words import text_of
from lra.results.first_versions import RECORDS, first_versions
from lra.runs.answers import read_answers
from lra.runs.facts import find_fact, flat
from lra.runs.folder import RESULT, TEACHER
from lra.runs.schema import CONVERSION, check_record

# Identity, version, seed and attempt: two records of one key are the same run.
Key = tuple[str, str, int, int]

SUBMITTED = "submitted"  # a folder of records/, with those that others sent: tables must name it
MISSING, NEVER = object(), datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, repr=False)
class Record:
    """One finished run."""

    facts: dict[str, Any]  # all that is in the file
    path: Path  # of the file it was read from

    def get(self, key: str, default: Any = None) -> Any:
        """Look up a fact.

        key      its dotted name, such as `settings.protocol.recipe.lr`
        default  what is given where the record has no such fact
        """
        return find_fact(self.facts, key, default)

    def __getitem__(self, key: str) -> Any:
        if (value := self.get(key, MISSING)) is MISSING:
            names = {name for name, _ in flat(self.facts)}
            parts = {name.partition(".")[0] for name in names}  # there are hundreds of names
            raise KeyError(f"this record has no fact '{key}'{nearest(key, names, parts)}")
        return value

    def __repr__(self) -> str:
        return f"<{self['task']}, {self.attention}, seed {self['seed']}: {self.score_text}>"

    @property
    def kind(self) -> str:
        """Return what it is of: `training` or `conversion`."""
        return str(self["kind"])

    @property
    def key(self) -> Key:
        return self["identity"], self.version, self["seed"], self.get("attempt", 1)

    @property
    def code(self) -> str:
        """Return the hash of the code; `a+b` if a run begun by code a was ended by code b."""
        return "+".join(self.get("codes") or [UNKNOWN])

    @cached_property
    def version(self) -> str:
        """Return what tells runs of one identity apart: the source of what is not the project's.
        The versions of the project itself are in the identity; early records have none, and are
        told apart by their code unless numerics.yaml lists it."""
        if (numerics := self.get("numerics")) is None:
            return "" if self.code in first_versions(self.path) else self.code
        method = "" if ATTENTION in numerics else f"the attention {self.attention}"
        outside = {
            part: source
            for part, source in (self.get("code") or {}).items()
            if part == method or part.startswith(CHOSEN)
        }
        return hash_parts(outside) if outside else ""

    @property
    def attention(self) -> str:
        """Return the name of the method."""
        return self["attention.name"]

    @property
    def score(self) -> float:
        """Return the score of the selected stage, in the unit of its metric: of a training on the
        test examples, of a conversion on dev."""
        return float(self["score"])

    @property
    def outcome(self) -> tuple[Any, ...]:
        """What two records of the same run have in common."""
        return self.score, self.stage.get("loss"), self.get("answers.packed")

    @property
    def score_text(self) -> str:
        """`41.05 %`"""
        return self.text(self.score)

    def text(self, score: float) -> str:
        """Spell another score of its metric."""
        return text_of(self["metric"], score)

    def first_step(self, score: float) -> int | None:
        """Return the first evaluation on dev with at least this score (at most, where lower is
        better). Runs may stay on a plateau for long and then leap: this says when."""
        sign = 1 if self["metric.higher_is_better"] else -1
        passed = (step for step, on_dev in self["curve"] if sign * on_dev >= sign * score)
        return next(passed, None)

    @property
    def floor(self) -> float | None:
        """Return the score of the same answer to everything, if the record has it."""
        return self.get("floor")

    @property
    def stage(self) -> dict[str, Any]:
        """Return the facts of the stage that gives the score."""
        return dict(self[f"stages.{self['select']}"])

    @property
    def revision(self) -> str:
        """Return the code's revision, abbreviated, with `+changes` if some were not committed."""
        git = self.get("git.revision")
        return "unknown" if not git else git[:10] + ("+changes" if self.get("git.dirty") else "")

    @cached_property
    def finished(self) -> datetime | None:
        """Return when the run ended, if the record has it."""
        when = self.get("times.finished")
        return None if when is None else datetime.fromisoformat(when)

    @property
    def run(self) -> str:
        """Return `<identity>-<code>-seed-<n>`, as tables cite it."""
        return str(self["run"])

    @property
    def order(self) -> tuple[str, ...]:  # of records in tables and files
        protocol = self.get("protocol.name") or ""
        return self.kind, self["task"], protocol, self["model"], self.attention, self.run

    @property
    def where(self) -> str:  # it is, for messages
        return f"{self.path}, run {self.run}" if self.path.suffix == ".jsonl" else str(self.path)

    @property
    def folder(self) -> Path:
        """Return the folder of the run; UserError for a record without one."""
        if self.path.name != RESULT:
            raise UserError(f"{self.where} is a record alone: give the folder of the run itself")
        return self.path.parent

    @cached_property
    def answers(self) -> Answers | None:
        """Return the answers to the examples that gave the score, if there are any; UserError if
        those in the file are not of this record."""
        if self.kind == CONVERSION:  # holds them itself
            predictions, labels = self.get("predictions"), self.get("labels")
            if not labels:
                return None
            split = next(iter(labels))
            return Answers(np.array(predictions[split]), np.array(labels[split]))
        if self.get("answers.packed") is None:
            return None
        sweep = self.path.suffix == ".jsonl"
        file = self.path.with_suffix(".npz") if sweep else self.path.with_name("answers.npz")
        return read_answers(file, self.run, self["answers"])


# ---------------------------------------------------------------------- reading files and folders


def load_records(folders: Iterable[str | Path], *, skip: bool = False) -> list[Record]:
    """Read each run once, sorted; of a run that is there twice the record that finished first."""
    return first_finished(read_all(folders, skip=skip), same=4)


def first_finished(records: Iterable[Record], *, same: int = 3) -> list[Record]:
    """Take of the records whose keys begin with the same parts, of attempts of one run that is, the
    one that finished first, so that nobody can repeat a run until they like its number; of equal
    times the one with the longer curve."""
    first: dict[Any, Record] = {}
    for r in sorted(records, key=lambda r: (r.finished or NEVER, r.key, -len(r.get("curve", ())))):
        first.setdefault(r.key[:same], r)
    return sorted(first.values(), key=lambda r: r.order)


def read_all(places: Iterable[str | Path], *, skip: bool = False) -> list[Record]:
    """Read every record in these files and folders, a run as often as it is there. With `skip` what
    is damaged is left out, and a line says so."""
    records: list[Record] = []
    for place in map(Path, places):
        if not place.exists():
            hint = "the first run makes it: lra train" if not place.suffix else "name another file"
            raise UserError(f"{place} does not exist; {hint}")
        for path in paths(place) if place.is_dir() else [place]:
            with _damage(skip):
                if path.suffix == ".jsonl":
                    records += read_sweep(path, skip=skip)
                else:
                    records.append(read_record(path))
    return records


@contextlib.contextmanager
def _damage(skip: bool) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        if not skip:
            raise
        print(printable(f"left out: {error}"), file=sys.stderr)


def paths(folder: Path) -> list[Path]:
    """List the files of records: those of runs, teachers of conversions left out, and of sweeps; of
    a folder of results those of its records. What is hidden was not written to its end."""
    folder = folder / RECORDS if (folder / RECORDS).is_dir() else folder
    files = (p for name in (RESULT, "*.jsonl") for p in folder.rglob(name) if p.is_file())
    whole = (p for p in files if not any(n[0] == "." for n in p.relative_to(folder).parts))
    return sorted(p for p in whole if p.parent.parent.name != TEACHER)


def read_sweep(path: Path, *, skip: bool = False) -> list[Record]:
    """Read and check the records of a file with one a line."""
    with readable(path, "it holds no records"):
        lines = plain_file(path).read_text(encoding="utf-8").split("\n")
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
                records.append(_checked(where, facts, path))
    return records


def read_record(path: Path) -> Record:
    """Read and check the record of a run's folder."""
    where = f"record {path}"
    with readable(where, "remove it, and run the same command again"):
        return _checked(where, json.loads(plain_file(path).read_text(encoding="utf-8")), path)


def _checked(where: str, facts: dict[str, Any], path: Path) -> Record:
    check_digest(facts)
    check_record(where, facts)
    return Record(facts, path)


def other_outcomes(records: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Find records of a run that was recorded before with another outcome, and that first record:
    nobody can repeat a run, or copy it elsewhere, until they like its number."""
    first = {r.key: r for r in first_finished(records, same=4)}
    return [(r, first[r.key]) for r in records if r.outcome != first[r.key].outcome]


def without_other_outcomes(records: Sequence[Record]) -> list[Record]:
    """Leave those out, and say so."""
    others = other_outcomes(records)
    for record, first in others:
        line = f"left out: {record.where} has another outcome than {first.where}, which is older"
        print(printable(line), file=sys.stderr)
    left_out = {id(record) for record, _ in others}
    return [r for r in records if id(r) not in left_out]


# ---------------------------------------------------------------------- lines of a sweep


def lines_of(records: Sequence[dict[str, Any]]) -> list[str]:
    """Write a line per record, with its digest, without what all share: that is the first line."""
    lines = [facts | {"digest": digest(facts)} for facts in records]
    if len(lines) > 1 and (shared := reduce(_common, lines)):
        lines = [{"shared": shared}, *(_without(facts, shared) for facts in lines)]
    return [compact(line) for line in lines]


def _common(a: Any, b: Any) -> dict[str, Any]:
    """Take the facts that two groups have in common, as text: 1 is not 1.0."""
    common: dict[str, Any] = {}
    for key in a.keys() & b.keys() if isinstance(a, dict) and isinstance(b, dict) else ():
        if compact(a[key]) == compact(b[key]):
            common[key] = a[key]
        elif inner := _common(a[key], b[key]):
            common[key] = inner
    return common


def _without(facts: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    """Leave out the facts in common, which `merged` adds again."""
    rest: dict[str, Any] = {}
    for key, value in facts.items():
        if key not in common:
            rest[key] = value
        elif compact(value) != compact(common[key]):
            rest[key] = _without(value, common[key])
    return rest


def merged(shared: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """Add to the facts of a run those that all runs of its sweep share."""
    both = {
        key: merged(shared[key], value)
        for key, value in facts.items()
        if isinstance(value, dict) and isinstance(shared.get(key), dict)
    }
    return shared | facts | both
