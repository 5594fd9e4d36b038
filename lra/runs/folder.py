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
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from lra.base.digests import check_digest, digest
from lra.base.disk import disk_errors, read_json, take_lock, write_atomically, write_json
from lra.base.errors import UserError, readable
from lra.base.yaml_data import read_yaml
from lra.metrics.words import text_of
from lra.settings.experiment import SCHEMA_VERSION, plain

if TYPE_CHECKING:  # `lra status` reads folders without Hydra
    from lra.base.code import Source
    from lra.settings.run import Run

RESULT, PHASE_ONE = "result.json", "pretrained.json"  # of a run; of one that only pretrains
DEBUG = "debug.json"  # of one that tries out whether something works: no table reads it
TEACHER = "teacher"  # the folder of what conversions start from, in place of an attention's
STATUS = "status.json"
LOCKED = " is being run by another process"
PROGRESS_EVERY = 5.0  # seconds between updates of status.json
TIME = "%Y-%m-%dT%H:%M:%S%z"


@dataclass
class RunFolder:
    """The folder of one run: its files, its lock and its status."""

    run: Run
    path: Path
    fingerprint: str  # of its data
    identity: str
    numerics: dict[str, int]  # declared versions of the method and of all parts
    source: Source
    attempt: int = 1
    _started: float = field(default_factory=lambda: time.time())
    _updated: float = 0.0

    def __post_init__(self) -> None:
        self.name = self.path.parent.name  # of the runs of all seeds
        self.id = f"{self.name}-{self.path.name}"  # as tables cite the run; name_of is the same
        self.config, self.metrics = self.path / "config.yaml", self.path / "metrics.csv"
        self.status_file = self.path / STATUS
        self.result_file = self.path / result_name(self.run)
        self.answers = self.path / "answers.npz"
        self.last, self.best = (self.path / f"checkpoints/{name}.ckpt" for name in ("last", "best"))

    @cached_property
    def _begun(self) -> float:
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
        return read_result(self.result_file) if finished(self.run, self.path) else None

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


def result_name(run: Run) -> str:
    """The file that a finished run has: of phase one, of a debugging run, of any other."""
    return PHASE_ONE if run.pretrain.is_the_run else DEBUG if run.debug else RESULT


def finished(run: Run, folder: Path) -> bool:
    """Whether a run has its result in a folder, and a phase one its weights, too."""
    whole = result_name(run) != PHASE_ONE or (folder / "checkpoints/last.ckpt").exists()
    return whole and (folder / result_name(run)).exists()


def _written(at: float) -> str:
    return time.strftime(TIME, time.localtime(at))


def code_in(folder: Path) -> dict[str, dict[str, str]]:
    """Read which source made a run: the hashes of its parts, and of its files."""
    config = folder / "config.yaml"
    if not config.is_file():
        return {"code": {}, "sources": {}}
    with readable(config, "remove it"):
        facts = read_yaml(config)
        return {key: facts.get(key) or {} for key in ("code", "sources")}


def data_dir_of(folder: Path) -> str:
    """Look up where a run had its data; `data` where that has been left out, as in an export."""
    config = folder / "config.yaml"
    if not config.is_file():
        return "data"
    with readable(config, "remove it"):
        return str(read_yaml(config)["data_dir"])


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
