"""Records: what finished runs leave behind, in a folder of runs or exported to be committed.

There are two kinds. A *training* run is one attention trained on one task; a *conversion* is a run
with stages (teacher, swap, stage 1, stage 2) that ends with a score. Both have settings, an
identity (the hash of those settings and of the data's fingerprint) and a seed.

An exported record is one file, `.../<identity>-<code>-seed-<n>.json`: the result, the settings, the
curve of dev accuracy, and a digest of these. If somebody edits a number, the digest no longer fits;
if somebody edits a setting, the identity does not either. Beside a training record lie the answers
to every test example (lra/runs/answers.py), from which lra/results/audit.py recomputes the numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from lra.base.code import UNKNOWN
from lra.base.config import UserError, readable
from lra.base.disk import disk_errors, write_atomically
from lra.results import schema
from lra.results.schema import CONVERSION, TRAINING
from lra.runs import answers
from lra.runs.answers import Answers
from lra.runs.folder import digest, identity_of, read_metrics, text_of

if TYPE_CHECKING:
    import pandas as pd

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

    @cached_property
    def name(self) -> str:
        """Return the path of the record in an export."""
        task = f"{self['task']}/{self.get('protocol.name')}"
        task = f"convert/{self['task']}" if self.kind == CONVERSION else task
        return f"{task}/{self['model']}/{self.attention}/{self.run}.json"

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def answers_file(self) -> Path:
        if self.path.name == "result.json":
            return self.path.with_name("answers.npz")
        return self.path.with_suffix(".npz")

    @cached_property
    def answers(self) -> Answers | None:
        """Return the answers to the examples that gave the score, if there are any; UserError if
        the file is not that of this record."""
        predictions, labels = self.get("predictions"), self.get("labels")
        if predictions and labels:  # a conversion holds them itself
            split = next(iter(labels))
            return Answers(np.array(predictions[split]), np.array(labels[split]))
        if self.get("answers") is None or not self.answers_file.exists():
            return None
        stored = answers.read_answers(self.answers_file)
        if stored.digest != self["answers.digest"]:
            raise UserError(f"{self.answers_file} is damaged or not of the record beside it")
        return stored


class Records(list[Record]):
    """Finished runs as a list, and as a data frame (docs/columns.md)."""

    def to_pandas(self) -> pd.DataFrame:
        from lra.results.frame import frame_of

        return frame_of(self).infer_objects()

    def _repr_html_(self) -> str:
        from lra.results.frame import MAIN

        return str(self.to_pandas()[list(MAIN)]._repr_html_())


def load_records(folders: Iterable[str | Path], kind: str | None = None) -> list[Record]:
    return unique_runs(read_all(folders), kind)


def read_all(folders: Iterable[str | Path]) -> list[Record]:
    """Read every record below the folders, a run as often as it is there."""
    records: list[Record] = []
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UserError(f"{folder} does not exist; the first run makes it: lra train")
        records += [record for path in paths(folder) if (record := read_record(path)) is not None]
    return records


def unique_runs(records: Iterable[Record], kind: str | None = None) -> list[Record]:
    """Return each run once (of one kind), by name."""
    by_key: dict[Key, Record] = {}
    for record in records:
        if kind in (None, record.kind):
            by_key[record.key] = earliest(by_key.get(record.key), record)
    return sorted(by_key.values(), key=lambda r: r.name)


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
    exported = (p for p in folder.rglob("*-seed-*.json") if p.is_file())
    return sorted([*folder.rglob("result.json"), *exported])


def read_record(path: Path) -> Record | None:
    """Read and check a record; None for a teacher, which is not a conversion."""
    facts = schema.read_facts(path)
    if path.name == "result.json":
        conversion = _kind(facts) == CONVERSION
        made = facts.pop("digest", None)
        if not conversion and "codes" in facts and made != digest(facts):
            raise UserError(f"{path} was edited after its run: its digest no longer fits")
        if conversion and facts.get("attention") is None:
            return None
        facts = _conversion(facts, path) if conversion else facts | _beside(path)
    elif facts.get("digest") != digest(facts):
        raise UserError(
            f"record {path} is damaged or was edited: its digest is not that of its contents"
        )
    record = Record(facts, path)
    schema.check_record(f"record {path}", facts, record.kind)
    return record


def export(
    sources: Iterable[str | Path], target: Path, *, answers: bool = True
) -> dict[str, list[Record]]:
    """Copy the records of run folders (or of other exports) to `target`, all or none of them; with
    the answers to test examples, or without them, where there are too many files to keep.

    Returns them sorted into `new`, `known` (already there) and `other` (already there with another
    outcome; the run that finished first is kept).
    """
    incoming = load_records(sources)
    if not incoming:
        raise UserError(f"there is no finished run in {', '.join(map(str, sources))}")
    there = {r.key: r for r in (load_records([target]) if target.is_dir() else [])}
    sorted_out: dict[str, list[Record]] = {"new": [], "known": [], "other": []}
    for record in incoming:
        old = there.get(record.key)
        first = earliest(old, record)
        # The loss as text, so that NaN equals NaN.
        outcomes = {(r.score, str(r.get("test.loss"))) for r in (old or record, record)}
        kind = "new" if old is None else "known" if len(outcomes) == 1 else "other"
        sorted_out[kind].append(record)
        with disk_errors(target / record.name):
            _copy(record, first, target / record.name, answers=answers)
    return sorted_out


def _copy(record: Record, first: Record, place: Path, *, answers: bool) -> None:
    """Write a record that is new or finished first, and answers that are missing."""
    place.parent.mkdir(parents=True, exist_ok=True)
    beside, answered = place.with_suffix(".npz"), record.get("answers.digest")
    missing = first is record or (not beside.exists() and answered == first.get("answers.digest"))
    if answers and answered and missing and record.answers is not None:
        write_atomically(beside, record.answers_file.read_bytes())
    if first is record:
        write_atomically(place, dump(record.facts).encode())


def dump(facts: dict[str, Any]) -> str:
    return text_of(facts | {"digest": digest(facts)})


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
