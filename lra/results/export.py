"""Copy records of finished runs into files of sweeps, which are small enough to be committed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lra.base.disk import disk_errors, write_atomically
from lra.base.errors import UserError
from lra.data.store import lock
from lra.metrics.answers import Answers
from lra.results import audit
from lra.results.record import Record, lines_of, load_records, paths, read_sweep
from lra.runs.answers import write_answers
from lra.runs.schema import TRAINING


def export(
    sources_of: Mapping[Path, Sequence[str | Path]], *, replace: bool = False
) -> dict[str, list[Record]]:
    """Add the records of files and folders, with their answers, to files of sweeps, all or none of
    them. A run that is there stays as it is, whatever the times of another outcome say. With
    `replace` it is replaced.

    Returns them sorted into `new`, `known` (already there) and `other` (already there with another
    outcome).
    """
    incoming = {target: load_records(sources) for target, sources in sources_of.items()}
    for target, sources in sources_of.items():
        if not incoming[target]:
            raise UserError(f"there is no finished run in {', '.join(map(str, sources))}")
    audit.refuse_contradictions([r for records in incoming.values() for r in records])
    with contextlib.ExitStack() as locks:  # else of two imports at once one would be lost
        for target in sorted(sources_of):
            locks.enter_context(lock(target, f"another process writes {target}; waiting for it"))
        return _merge(incoming, replace=replace)


def _merge(incoming: Mapping[Path, list[Record]], *, replace: bool) -> dict[str, list[Record]]:
    sorted_out: dict[str, list[Record]] = {"new": [], "known": [], "other": []}
    merged: dict[Path, list[Record]] = {}
    there: dict[Path, list[Record]] = {}
    for target, records in incoming.items():
        there[target] = read_sweep(target) if target.exists() else []
        by_key = {r.key: r for r in there[target]}
        for record in records:
            old = by_key.get(record.key)
            same = old is not None and old.outcome == record.outcome
            kind = "new" if old is None else "known" if same else "other"
            sorted_out[kind].append(record)
            if replace or old is None:
                by_key[record.key] = record
        merged[target] = sorted(by_key.values(), key=lambda r: r.order)
    # A copy of a run that is there may only show beside it that it cannot be right.
    audit.refuse_contradictions([r for records in merged.values() for r in records])
    for target, records in merged.items():
        _write(target, records, replaced=[r for r in there[target] if r not in records])
    return sorted_out


def _write(target: Path, records: list[Record], replaced: list[Record]) -> None:
    """Write records and answers so that they fit whenever the process dies: between the two files
    the answers are those of the old records and of the new ones."""
    answers, before = _answers_of(records), _answers_of(replaced)
    file, lines = target.with_suffix(".npz"), lines_of([r.facts for r in records])
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        if answers or before:
            write_answers(file, answers, before)
        write_atomically(target, "".join(f"{line}\n" for line in lines).encode())
        if before:
            write_answers(file, answers)


def _answers_of(records: Iterable[Record]) -> dict[str, Answers]:
    return {r.run: r.answers for r in records if r.kind == TRAINING and r.answers}


def targets(sources: Iterable[str | Path], into: Path) -> dict[Path, list[str | Path]]:
    """Find the file of each source in a folder: it is named as the .jsonl or the folder of runs."""
    sources_of: dict[Path, list[str | Path]] = {}
    for source in map(Path, sources):
        files = paths(source) if source.is_dir() else [source]
        for file in files or [source]:
            name = f"{source.resolve().name.removesuffix('.jsonl')}.jsonl"
            if file.suffix == ".jsonl" and file != source:
                name = str(file.relative_to(source))
            sources_of.setdefault(into / name, []).append(file)
    return sources_of
