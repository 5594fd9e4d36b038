"""Copy records of finished runs into files of sweeps, which are small enough to be committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lra.base.disk import disk_errors, write_atomically
from lra.base.errors import UserError
from lra.results import audit
from lra.results.record import Record, lines_of, load_records, paths, read_sweep
from lra.runs.answers import write_answers
from lra.runs.schema import TRAINING


def export(
    sources_of: Mapping[Path, Sequence[str | Path]], *, replace: bool = False
) -> dict[str, list[Record]]:
    """Add the records of files and folders, with their answers, to files of sweeps, all or none of
    them. A run that is there stays as it is: nobody can repeat a run, or forge its times, until it
    has another outcome. With `replace` it is replaced.

    Returns them sorted into `new`, `known` (already there) and `other` (already there with another
    outcome).
    """
    incoming = {target: load_records(sources) for target, sources in sources_of.items()}
    for target, sources in sources_of.items():
        if not incoming[target]:
            raise UserError(f"there is no finished run in {', '.join(map(str, sources))}")
    audit.refuse_contradictions([r for records in incoming.values() for r in records])
    sorted_out: dict[str, list[Record]] = {"new": [], "known": [], "other": []}
    merged: dict[Path, list[Record]] = {}
    for target, records in incoming.items():
        by_key = {r.key: r for r in (read_sweep(target) if target.exists() else [])}
        for record in records:
            old = by_key.get(record.key)
            outcomes = {(r.score, r.stage.get("loss")) for r in (old or record, record)}
            kind = "new" if old is None else "known" if len(outcomes) == 1 else "other"
            sorted_out[kind].append(record)
            if replace or old is None:
                by_key[record.key] = record
        merged[target] = sorted(by_key.values(), key=lambda r: r.order)
    for target, records in merged.items():
        answers = {r.run: r.answers for r in records if r.kind == TRAINING and r.answers}
        lines = lines_of([r.facts for r in records])
        with disk_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            if answers:
                write_answers(target.with_suffix(".npz"), answers)
            write_atomically(target, "".join(f"{line}\n" for line in lines).encode())
    return sorted_out


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
