"""The full runs of queue.yaml: which are left, their data, the records of those done."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from gpu.call import ROOT, Call, Process, say
from lra.base.errors import UserError


@dataclasses.dataclass(frozen=True)
class Entry:
    """Words of `lra train` for some seeds, composed."""

    group: str  # the words that it shares with others
    words: tuple[str, ...]  # all of them
    seeds: tuple[int, ...]
    seconds: float  # of a GPU on which nothing else runs
    run: Any  # lra.settings.run.Run

    @property
    def records(self) -> str:
        """The name of the file of its records, which is that of its folder of runs."""
        return f"{Path(self.run.runs_dir).name}.jsonl"

    @property
    def title(self) -> str:
        chosen = [
            word for word in self.words if word.startswith(("task=", "attention", "steps_share="))
        ]
        return " ".join(chosen)


@dataclasses.dataclass(frozen=True)
class Job:
    """One run to be done."""

    entry: Entry
    seed: int

    @property
    def seconds(self) -> float:
        return self.entry.seconds

    @property
    def title(self) -> str:
        return f"{self.entry.title} seed={self.seed}"


def read_queue(file: Path) -> list[Entry]:
    """Compose every entry as `lra train` would; UserError names the first that is refused."""
    from lra.settings.compose import compose

    entries = []
    for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]:
        for row in group["runs"]:
            words = (*shlex.split(group["words"]), *shlex.split(row["words"]))
            seeds = tuple(row.get("seeds", group["seeds"]))
            run = compose(words)
            entries.append(Entry(group["words"], words, seeds, row["seconds"], run))
    return entries


def records_of(entries: Iterable[Entry], folders: Sequence[Path]) -> dict[str, list[Any]]:
    """The records in each folder's file of this name; damaged ones are named and left out."""
    from lra.results.record import read_sweep

    records: dict[str, list[Any]] = {}
    for name in {entry.records for entry in entries}:
        files = [folder / name for folder in folders if (folder / name).exists()]
        records[name] = [record for file in files for record in read_sweep(file, skip=True)]
    return records


def seeds_done(entry: Entry, records: Iterable[Any]) -> set[int]:
    """The seeds that have a record of this identity. The data need not be here: a record holds
    their fingerprint."""
    experiment = entry.run.experiment
    return {
        record["seed"]
        for record in records
        if record["identity"] == experiment.identity(record["data.fingerprint"])
    }


def jobs_left(entries: Sequence[Entry], out: Path) -> list[Job]:
    """The runs without a record, in the queue's order."""
    records = records_of(entries, [ROOT / "results" / "records", out])
    jobs = []
    for entry in entries:
        done = seeds_done(entry, records[entry.records])
        jobs += [Job(entry, seed) for seed in entry.seeds if seed not in done]
    return jobs


def export(runs_dir: Path, out: Path) -> None:
    """Add the records of all finished runs of a folder to its file in `out`: the file is replaced
    as a whole, so a cut at any moment leaves the old one or the new one."""
    from lra.results.export import export as add

    if not runs_dir.is_dir() or next(runs_dir.rglob("result.json"), None) is None:
        return
    target = out / f"{runs_dir.name}.jsonl"
    try:
        added = add({target: [runs_dir]})
    except UserError as error:
        say(f"not exported: {error}")
        return
    if added["new"]:
        say(f"{target.name}: {len(added['new'])} new records")


# ---------------------------------------------------------------------- data


class Data:
    """The data of the queue, prepared in the background, one process for each set."""

    def __init__(self, entries: Iterable[Entry], call: Call):
        from lra.data import registry
        from lra.data.prepare import find_prepared, prepare_command

        self._ready: dict[str, bool] = {}
        self._processes: dict[str, Process] = {}
        for number, entry in enumerate(entries):
            run, where = entry.run, self._where(entry)
            key = self.key(entry)
            if key in self._ready or key in self._processes:
                continue
            command = prepare_command(run.task, **where)
            if find_prepared(run.task, **where) is not None:
                self._ready[key] = True
            elif registry.of(run.task).needs_download(run.task, Path(run.data_dir)):
                say(f"left out: the data of {run.task.name} have to be downloaded: {command}")
                self._ready[key] = False
            else:
                words = ["-m", "lra", *shlex.split(command)[1:]]
                log = Path(run.runs_dir) / "logs" / f"data-{number}.txt"
                self._processes[key] = call.start(words, log)
                say(f"{run.task.name}: being prepared in the background")

    def ready(self, entry: Entry) -> bool:
        """Whether its data are there. It waits for none."""
        self._look()
        return self._ready.get(self.key(entry), False)

    @property
    def waiting(self) -> bool:
        self._look()
        return bool(self._processes)

    @property
    def processes(self) -> list[Process]:
        return list(self._processes.values())

    def _look(self) -> None:
        for key, process in list(self._processes.items()):
            if (code := process.poll()) is None:
                continue
            del self._processes[key]
            self._ready[key] = code == 0
            name = json.loads(key)[0]
            if code == 0:
                say(f"{name}: prepared in {process.seconds:.0f} s")
            else:
                say(f"{name}: NOT prepared, its runs are left out\n{process.tail()}")

    @staticmethod
    def _where(entry: Entry) -> dict[str, Any]:
        run = entry.run
        return {"max_length": run.protocol.data.max_length, "data_dir": run.data_dir}

    @classmethod
    def key(cls, entry: Entry) -> str:
        from lra.settings.experiment import plain

        options = plain(dataclasses.asdict(entry.run.task))
        return json.dumps([entry.run.task.name, options, cls._where(entry)], sort_keys=True)
