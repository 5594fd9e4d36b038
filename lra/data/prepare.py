"""From options to prepared arrays: opened where they are on disk, or made once."""

from __future__ import annotations

import platform
import shlex
import time
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np

from lra.base.errors import UserError
from lra.data import registry
from lra.data.arrays import (
    MANIFEST,
    SPLITS,
    Prepared,
    Split,
    digest_of,
    manifest_text,
    read_manifest,
)
from lra.data.parallel import cores, track
from lra.data.registry import check_options, overrides
from lra.data.statistics import check_metrics, statistics
from lra.data.store import lock, new_folder, read_errors, sha256
from lra.data.task import Job, RawSplit, Task, TaskOptions
from lra.data.writer import Writer


def identity(task: Task, options: TaskOptions, max_length: int) -> str:
    """Name the preparation: the source, and a hash of everything that decides the arrays."""
    facts = known_facts(task, options, max_length)
    facts.pop("provenance")  # words, not data
    return f"{options.source}-{digest_of(facts)[:10]}"


def load_prepared(folder: Path) -> Prepared:
    manifest = read_manifest(folder)
    return Prepared(folder, manifest, registry.of_facts(manifest["facts"]))


def find_prepared(
    options: TaskOptions, *, max_length: int, data_dir: str | Path
) -> Prepared | None:
    """Open the prepared data; None where they are not prepared."""
    task = registry.of(options)
    check_options(task, options)
    folder = Path(data_dir) / task.name / identity(task, options, max_length)
    with read_errors(folder):
        there = (folder / MANIFEST).exists()
    return load_prepared(folder) if there else None


def with_fingerprint(data_dir: Path, task: str, fingerprint: str) -> Prepared | None:
    """Open the prepared data of a record, if they are on this machine."""
    for manifest in sorted((data_dir / task).glob(f"*/{MANIFEST}")):
        if read_manifest(manifest.parent)["fingerprint"] == fingerprint:
            return load_prepared(manifest.parent)
    return None


def find_or_prepare(
    options: TaskOptions, *, max_length: int, data_dir: str | Path, workers: int | None = None
) -> Prepared:
    """Open the prepared data, prepared now if they are missing; see `refuse_download`."""
    where: dict[str, Any] = {"max_length": max_length, "data_dir": data_dir}
    if prepared := find_prepared(options, **where):
        return prepared
    refuse_download(options, **where)
    task = registry.of(options)
    _files(task, options)  # which refuses those that are not there
    print(f"{task.name} is not prepared yet ({task.provenance(options)}); preparing it now")
    return prepare(options, **where, workers=workers)


def refuse_download(options: TaskOptions, *, max_length: int, data_dir: str | Path) -> None:
    """UserError, with the command that prepares them, where data are missing that would have to be
    downloaded: no run downloads anything."""
    where: dict[str, Any] = {"max_length": max_length, "data_dir": data_dir}
    task = registry.of(options)
    if task.needs_download(options, Path(data_dir)) and find_prepared(options, **where) is None:
        raise UserError(
            f"{task.name} is not prepared in {data_dir} and has to be downloaded: "
            f"run `{prepare_command(options, **where)}`"
        )


def prepare(
    options: TaskOptions,
    *,
    max_length: int,
    data_dir: str | Path,
    workers: int | None = None,
    force: bool = False,
) -> Prepared:
    """Prepare a task, or return what is prepared already; `force` prepares it again."""
    task = registry.of(options)
    where: dict[str, Any] = {"max_length": max_length, "data_dir": data_dir}
    if not force and (prepared := find_prepared(options, **where)):
        _check_inputs(prepared, task, options)
        return prepared
    check_options(task, options)
    folder = Path(data_dir) / task.name / identity(task, options, max_length)
    waiting = f"another process is preparing {task.name} in {folder}; waiting for it"
    with lock(folder, waiting):
        if not force and (prepared := find_prepared(options, **where)):  # made during the wait
            return prepared
        with new_folder(folder) as partial:
            _make(task, options, Job(workers or cores(), Path(data_dir)), partial, max_length)
        return load_prepared(folder)


def prepare_command(options: TaskOptions, *, max_length: int, data_dir: str | Path) -> str:
    task = registry.of(options)
    words = ["lra", "data", "prepare", task.name, *overrides(task, options)]
    if str(data_dir) != "data":
        words += ["--data-dir", str(data_dir)]
    if task.width(options, max_length) != task.width(options, task.max_length):
        words += ["--max-length", str(max_length)]
    return shlex.join(words)


def known_facts(task: Task, options: TaskOptions, max_length: int) -> dict[str, Any]:
    return {
        "task": task.name,
        "source": options.source,
        "provenance": task.provenance(options),
        "options": task.matters(options),
        "width": task.width(options, max_length),
        "versions": task.versions(options),
    }


def _make(task: Task, options: TaskOptions, job: Job, partial: Path, max_length: int) -> None:
    start = time.monotonic()
    facts = known_facts(task, options, max_length)
    inputs = [_input(path) for path in _files(task, options)]
    arrays, truncated = _write(task, [*task.splits(options, job)], facts["width"], partial)
    inputs += [_input(path) for path in job.inputs]
    splits = {s: Split.open(s, task, facts["width"], partial) for s in SPLITS}
    check_metrics(task, {s: split.scored_labels() for s, split in splits.items()})
    counted = statistics(splits)
    for split, facts_of_split in counted["splits"].items():
        facts_of_split["truncated"] = truncated[split]
    facts |= {**counted, "notes": dict(sorted(job.notes.items())), "arrays": arrays}
    made = {
        "command": prepare_command(options, max_length=max_length, data_dir=job.data_dir),
        "inputs": inputs,
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seconds": round(time.monotonic() - start, 1),
        "luna-lra": next((d.version for d in distributions(name="luna-lra")), None),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    (partial / MANIFEST).write_text(manifest_text(facts, made), encoding="utf-8")


def _write(
    task: Task, splits: list[RawSplit], width: int, partial: Path
) -> tuple[dict[str, Any], dict[str, int]]:
    """Write the arrays; give their facts, and how many examples of each split had to be cut."""
    sizes = [split.size for split in splits]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    examples = ((split.name, example) for split in splits for example in split.examples)
    with Writer(partial, task, width) as writer:
        for name, example in track(examples, f"preparing {task.name}", total):
            writer.add(name, example)
        return writer.close(), writer.truncated


def _files(task: Task, options: TaskOptions) -> list[Path]:
    """List the files that a task reads; without `path` a prepared task does not need them."""
    is_elsewhere = options.source != "tiny" and getattr(options, "path", "") is None
    return [] if is_elsewhere else task.inputs(options)


def _input(path: Path) -> dict[str, Any]:
    return {"path": str(path.resolve()), "bytes": path.stat().st_size, "sha256": sha256(path)}


def _check_inputs(prepared: Prepared, task: Task, options: TaskOptions) -> None:
    """Refuse input files that differ from those the arrays were made from."""
    hashes = {item["sha256"] for item in prepared.manifest["made"]["inputs"]}
    for path in _files(task, options):
        if sha256(path) not in hashes:
            raise UserError(
                f"{prepared.folder} was prepared from other files: {path} is not one of them; "
                "use --force to prepare from these, or another --data-dir to keep both"
            )
