"""A run on disk: its identity, folder, lock, status and result. File names are known only here.

    runs/<task>/<protocol>/<model>/<attention>/<identity>-<code>/seed-<n>/
        config.yaml   metrics.csv   status.json   checkpoints/{last,best}.ckpt   lock
        result.json   answers.npz

Phase one of a pretrained run (lra/model/pretrain.py) is a run with a folder of its own, in which
`pretrained.json` stands for `result.json`.

`identity` is the hash of settings, data and declared versions (lra/base/versions.py). `code` is
that of the source (lra/base/code.py) and decides nothing: a finished run of other source is
returned. So folders of several sources lie side by side, and a checkpoint stays with its own. A
repetition (`rerun=true`) is in `seed-<n>-attempt-<k>`.

`result.json` appears, complete, only when a run has finished. `status.json` says running,
interrupted, failed or finished. The lock is the kernel's (flock), which releases it when the
process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import socket
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from lra.base import versions
from lra.base.code import CHOSEN, find_source, source_of
from lra.base.digests import check_digest, digest
from lra.base.disk import disk_errors, read_json, take_lock, write_atomically, write_json
from lra.base.errors import UserError, readable
from lra.base.versions import is_ours
from lra.base.yaml_data import read_yaml
from lra.metrics.words import text_of
from lra.settings.experiment import SCHEMA_VERSION, plain

if TYPE_CHECKING:  # `lra status` reads folders without Hydra
    from lra.settings.compose import Run

RESULT, PHASE_ONE = "result.json", "pretrained.json"  # of a run; of one that only pretrains
DEBUG = "debug.json"  # of one that tries out whether something works: no table reads it
TEACHER = "teacher"  # the folder of what conversions start from, in place of an attention's
LOCKED = " is being run by another process"
PROGRESS_EVERY = 5.0  # seconds between updates of status.json
TIME = "%Y-%m-%dT%H:%M:%S%z"


class RunFolder:
    """The folder of one run: one in which it has finished, or that of today's source. With `rerun`
    it is that of the latest attempt with today's source, or, with `again` too, of the one after it
    if that has finished."""

    def __init__(self, run: Run, fingerprint: str, *, again: bool = False):
        experiment = run.experiment
        self.run, self.numerics = run, experiment.numerics()
        self._fingerprint = fingerprint
        self.identity = experiment.identity(fingerprint, self.numerics)
        parts = [name for name in self.numerics if name in versions.PARTS]
        self.source = source_of(run.attention["name"], parts, chosen_code(run))
        self._result = PHASE_ONE if run.pretrain.is_the_run else DEBUG if run.debug else RESULT
        group = Path(run.runs_dir) / run.task.name / run.protocol.name / run.model.name
        self._of_method = group / run.attention["name"]
        first = self._of_method / f"{self.identity}-{self.source.hash}" / f"seed-{run.seed}"
        self.path, self.attempt = first, 1
        if run.rerun:
            self.path, self.attempt = self._last_attempt(first, again)
        elif not self._finished(first):
            self.path = self._made_by_other_source() or first
        self.name = self.path.parent.name  # of the runs of all seeds
        self.id = f"{self.name}-{self.path.name}"  # as tables cite the run; name_of is the same
        self.config, self.metrics = self.path / "config.yaml", self.path / "metrics.csv"
        self.status_file, self.result_file = self.path / "status.json", self.path / self._result
        self.answers = self.path / "answers.npz"
        self.last, self.best = (self.path / f"checkpoints/{name}.ckpt" for name in ("last", "best"))
        self._started, self._updated = time.time(), 0.0
        self._begun = self._first_begun()

    def _finished(self, folder: Path) -> bool:
        """Whether a run has its result, and a phase one its weights, too."""
        whole = self._result != PHASE_ONE or (folder / "checkpoints/last.ckpt").exists()
        return whole and (folder / self._result).exists()

    def _last_attempt(self, first: Path, again: bool) -> tuple[Path, int]:
        folder, attempt = first, 1
        while True:
            following = first.with_name(f"{first.name}-attempt-{attempt + 1}")
            if not (following.exists() or (again and (folder / self._result).exists())):
                return folder, attempt
            folder, attempt = following, attempt + 1

    def _made_by_other_source(self) -> Path | None:
        """Find the newest finished run that other source of the project made; None if there is
        none. What is not the project's has to be the same."""
        folders = self._of_method.glob(f"{self.identity}*/seed-{self.run.seed}")
        newest_first = sorted(
            (folder for folder in folders if self._finished(folder)),
            key=lambda folder: (folder / self._result).stat().st_mtime,
            reverse=True,
        )
        same = (f for f in newest_first if self.source.same_outside(code_in(f)["code"]))
        return next(same, None)

    def other_source(self) -> str:
        """Name what differs in the source that made this run; empty where nothing does."""
        made_by = code_in(self.path)
        return self.source.differs_from(made_by["code"], made_by["sources"])

    def earlier(self) -> tuple[str, Path] | None:
        """Find an unfinished run of these settings that another version, or other source, began:
        what has changed since, and its folder."""
        where = f"seed-{self.run.seed}"
        same = self._of_method.glob(f"{self.identity}*/{where}")
        if others := sorted(same, key=lambda folder: folder.stat().st_mtime):
            made_by = code_in(others[-1])
            differs = self.source.differs_from(made_by["code"], made_by["sources"])
            return f"the source has changed ({differs})", others[-1]
        for part, numerics in versions.earlier(self.numerics):
            identity = self.run.experiment.identity(self._fingerprint, numerics)
            if others := sorted(self._of_method.glob(f"{identity}*/{where}")):
                now = self.numerics[part]
                return f"numerics of the {part} is {now}, and was {numerics[part]}", others[-1]
        return None

    def _first_begun(self) -> float:
        """When the first process began the run, where a later one resumes it."""
        status = read_json(self.status_file) or {}
        if "begun" not in status:
            return self._started
        with readable(self.status_file, "remove it"):
            return datetime.fromisoformat(status["begun"]).timestamp()

    @contextlib.contextmanager
    def lock(self, *, wait: bool = False) -> Iterator[None]:
        """Hold the run's lock; UserError if another process has it, unless this one is to wait."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            handle = (self.path / "lock").open("ab")
        with handle:
            if not take_lock(handle, self.path):
                if not wait:
                    raise UserError(
                        f"{self.path}{LOCKED}; wait for it, or stop it first: lra status"
                    )
                print(f"{self.path}{LOCKED}: waiting for it", flush=True)
                take_lock(handle, self.path, wait=True)
            yield

    def begin(self) -> None:
        """Write the settings, for people and for `data_dir_of`, and that the run has begun."""
        facts = {"settings": self.run.experiment.settings(), "seed": self.run.seed}
        facts |= {"numerics": self.numerics} | self.code_facts() | {"sources": self.source.files}
        facts["data_dir"] = str(Path(self.run.data_dir).resolve())
        text = yaml.safe_dump(plain(facts), sort_keys=False)
        with writing(self.config):
            write_atomically(self.config, text.encode())
        self.set_status("running")

    def result(self) -> dict[str, Any] | None:
        """Read the result; None before the end, and for a phase one whose weights are gone."""
        return read_result(self.result_file) if self._finished(self.path) else None

    def set_status(self, status: str, **facts: Any) -> None:
        facts = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "begun": _written(self._begun),
            "started": _written(self._started),
        } | facts
        with writing(self.path):
            write_json(self.status_file, {"status": status, "updated": time.strftime(TIME)} | facts)

    def progress(self, step: int, steps: int) -> None:
        if time.monotonic() - self._updated > PROGRESS_EVERY:
            self._updated = time.monotonic()
            self.set_status("running", step=step, steps=steps)

    def code_facts(self) -> dict[str, Any]:
        return {"codes": [self.source.hash], "code": self.source.parts}

    def facts(self) -> dict[str, Any]:
        """Give what a record says of the run itself, which ends now."""
        times = {"begun": self._begun, "started": self._started, "finished": time.time()}
        return {
            "schema": SCHEMA_VERSION,
            "status": "finished",
            "run": self.id,
            "identity": self.identity,
            "attempt": self.attempt,
            "seed": self.run.seed,
            "settings": self.run.experiment.settings(),
            "times": {name: _written(at) for name, at in times.items()},
            "numerics": self.numerics,
        } | self.code_facts()

    def finish(self, result: dict[str, Any]) -> None:
        """Write the result: of a run its record, of a phase one what it says of itself."""
        self.set_status("finished")  # first: only the result says that it has
        with writing(self.path):
            write_json(self.result_file, result | {"digest": digest(result)})


def _written(at: float) -> str:
    return time.strftime(TIME, time.localtime(at))


def chosen_code(run: Run) -> dict[str, list[str]]:
    """List the modules from outside the project of a run's metrics, and of what it names that moves
    its result."""
    from lra import data
    from lra.base.targets import module_of, resolve, targets_in
    from lra.metrics.metric import get
    from lra.settings.own import chosen, decides

    parts: dict[str, list[str]] = {}
    # A metric decides which checkpoint is the best; phase one has its own, an accuracy.
    names = [] if run.pretrain.is_the_run else data.of(run.task).metric_names
    for name in names:
        module = type(get(name)).__module__
        if not is_ours(module) and find_source(module) is not None:
            parts[f"{CHOSEN}metric {name}"] = [module]
    for setting, options in chosen(run):
        if not decides(setting, options):
            continue
        found = [module_of(resolve(setting, target)) for target in targets_in(options)]
        if modules := [module for module in found if module is not None and not is_ours(module)]:
            # With a space in callbacks.ema: a dot in a key would make dotted names ambiguous.
            parts[f"{CHOSEN}{setting.replace('.', ' ')}"] = modules
    return parts


def code_in(folder: Path) -> dict[str, dict[str, str]]:
    """Read which source made a run: the hashes of its parts, and of its files."""
    config = folder / "config.yaml"
    if not config.is_file():
        return {"code": {}, "sources": {}}
    with readable(config, "remove it"):
        facts = read_yaml(config)
        return {key: facts.get(key) or {} for key in ("code", "sources")}


def note_other_code(folder: RunFolder) -> None:
    """Say which run of the same settings is kept, where one of other code begins anew."""
    if not folder.path.exists() and not folder.run.rerun and (found := folder.earlier()):
        why, other = found
        print(f"{why}: beginning anew, {other} is kept")


def data_dir_of(folder: Path) -> str:
    """Look up where a run had its data; `data` where that has been left out, as in an export."""
    config = folder / "config.yaml"
    if not config.is_file():
        return "data"
    with readable(config, "remove it"):
        return str(read_yaml(config)["data_dir"])


def find(run: Run) -> RunFolder | None:
    """Find the folder that a run has or will have; None while its data are not prepared."""
    from lra.data.prepare import find_prepared

    if run.compute.solve:  # the search decides some of the options, and they identify the run
        from lra.compute.budget import budget_of
        from lra.compute.solve import solve

        run, _ = solve(run, budget_of(run))
    length = run.protocol.data.max_length
    prepared = find_prepared(run.task, max_length=length, data_dir=run.data_dir)
    return None if prepared is None else RunFolder(run, prepared.fingerprint)


def score_of(result: dict[str, Any]) -> str:
    if "score" in result:
        metric = result["metric"]
        return f"test {metric['title']} {text_of(metric, result['score'])}"
    return f"loss {result['pretraining']['held_out']['loss']:.3f} on held-out training inputs"


def read_result(path: Path) -> dict[str, Any] | None:
    """Read the result of a finished run or phase one; None where there is no such file."""
    result = read_json(path)
    if result is not None:
        if result.get("schema") != SCHEMA_VERSION:
            raise UserError(
                f"{path} is of an earlier version, which is not read any more: remove it"
            )
        with readable(path, "remove it, and the same command tests the last checkpoint again"):
            check_digest(result)
    return result


def read_metrics(path: Path) -> list[dict[str, str]]:
    """Read the complete rows of a metrics.csv; a last line cut short by a kill is left out."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1])))


def writing(path: Path) -> contextlib.AbstractContextManager[None]:
    """Turn errors of the disk into UserError, for blocks that write into a run's folder."""
    return disk_errors(path, "point runs_dir elsewhere; the same command then resumes the run")
