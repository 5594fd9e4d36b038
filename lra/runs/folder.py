"""A run on disk: its identity, folder, lock, status and result. File names are known only here.

    runs/<task>/<protocol>/<model>/<attention>/<identity>-<code>/seed-<n>/
        config.yaml   metrics.csv   status.json   checkpoints/{last,best}.ckpt   lock
        result.json   answers.npz

Phase one of a pretrained run (lra/model/pretrain.py) is a run with a folder of its own, in which
`pretrained.json` stands for `result.json`.

`identity` is the hash of settings and data, `code` that of the code (lra/base/code.py): a run of
other code has another folder, and the older one is kept. A repetition (`rerun=true`) is in
`seed-<n>-attempt-<k>`. `result.json` appears, complete, only when a run has finished.
`status.json` says running, interrupted, failed or finished. The lock is the kernel's (flock), which
releases it when the process ends, however it ends.
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
from typing import IO, TYPE_CHECKING, Any

import yaml

from lra.base.code import CHOSEN, PRETRAINING, SHARED, code_of, find_source, hash_parts
from lra.base.config import Objective
from lra.base.digests import check_digest, digest
from lra.base.disk import disk_errors, read_json, take_lock, write_atomically, write_json
from lra.base.errors import UserError, readable
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
    """The folder of one run with today's code. With `rerun` it is that of the latest attempt, or,
    with `again` too, of the one after it if that has finished."""

    def __init__(self, run: Run, fingerprint: str, *, again: bool = False):
        pretrained = run.pretrain.name is not Objective.none
        parts = (SHARED | PRETRAINING if pretrained else SHARED) | chosen_code(run)
        result = PHASE_ONE if run.pretrain.is_the_run else DEBUG if run.debug else RESULT
        self.run, self.identity = run, run.experiment.identity(fingerprint)
        code = code_of(run.attention["name"], parts)
        self.code_facts = {"codes": [hash_parts(code)], "code": code}
        self.name = f"{self.identity}-{hash_parts(code)}"  # of the runs of all seeds
        group = Path(run.runs_dir) / run.task.name / run.protocol.name / run.model.name
        first = group / run.attention["name"] / self.name / f"seed-{run.seed}"
        self.path, self.attempt = first, 1
        while run.rerun:
            following = first.with_name(f"{first.name}-attempt-{self.attempt + 1}")
            if not (following.exists() or (again and (self.path / result).exists())):
                break
            self.path, self.attempt = following, self.attempt + 1
        self.id = f"{self.name}-{self.path.name}"  # as tables cite the run; name_of is the same
        self.config, self.metrics = self.path / "config.yaml", self.path / "metrics.csv"
        self.status_file, self.result_file = self.path / "status.json", self.path / result
        self.answers = self.path / "answers.npz"
        self.last, self.best = (self.path / f"checkpoints/{name}.ckpt" for name in ("last", "best"))
        self._started, self._since, self._updated = time.time(), time.monotonic(), 0.0
        self._lock: IO[Any] | None = None  # the open file
        self._begun = self._first_begun()

    def _first_begun(self) -> float:
        """When an earlier process began the run. If the clock was set back since, it is so long ago
        as that process worked: a run cannot take longer than from its start to its end."""
        status = read_json(self.status_file) or {}
        if "begun" not in status:
            return self._started
        with readable(self.status_file, "remove it"):
            begun = datetime.fromisoformat(status["begun"]).timestamp()
            return min(begun, self._started - status.get("lasted", 0))

    def _now(self) -> float:
        """The time; it goes on where the clock is set back while the run works."""
        return max(time.time(), self._started + time.monotonic() - self._since)

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
            self._lock = handle
            yield

    def begin(self) -> None:
        """Write the settings, for people and for `data_dir_of`, and that the run has begun."""
        facts = {"settings": self.run.experiment.settings(), "seed": self.run.seed}
        facts |= self.code_facts | {"data_dir": str(Path(self.run.data_dir).resolve())}
        text = yaml.safe_dump(plain(facts), sort_keys=False)
        with writing(self.config):
            write_atomically(self.config, text.encode())
        self.set_status("running")

    def result(self) -> dict[str, Any] | None:
        """Read the result; None before the end, and for a phase one whose weights are gone."""
        whole = self.result_file.name == RESULT or self.last.exists()
        return read_result(self.result_file) if whole else None

    def set_status(self, status: str, **facts: Any) -> None:
        facts = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "begun": _written(self._begun),
            "started": _written(self._started),
            "lasted": round(self._now() - self._begun),  # seconds
        } | facts
        with writing(self.path):
            write_json(self.status_file, {"status": status, "updated": time.strftime(TIME)} | facts)

    def progress(self, step: int, steps: int) -> None:
        if time.monotonic() - self._updated > PROGRESS_EVERY:
            self._updated = time.monotonic()
            if self._lock and not os.fstat(self._lock.fileno()).st_nlink:  # a second run may begin
                raise UserError(f"the lock of {self.path} was removed while it ran: run it again")
            self.set_status("running", step=step, steps=steps)

    def facts(self) -> dict[str, Any]:
        """Give what a record says of the run itself, which ends now."""
        times = {"begun": self._begun, "started": self._started, "finished": self._now()}
        return {
            "schema": SCHEMA_VERSION,
            "status": "finished",
            "run": self.id,
            "identity": self.identity,
            "attempt": self.attempt,
            "seed": self.run.seed,
            "settings": self.run.experiment.settings(),
            "times": {name: _written(at) for name, at in times.items()},
        } | self.code_facts

    def finish(self, result: dict[str, Any]) -> None:
        """Write the result: of a run its record, of a phase one what it says of itself."""
        self.set_status("finished")  # first: only the result says that it has
        with writing(self.path):
            write_json(self.result_file, result | {"digest": digest(result)})


def _written(at: float) -> str:
    return time.strftime(TIME, time.localtime(at))


def chosen_code(run: Run) -> dict[str, list[str]]:
    """List the modules of a run's metrics, and of what it names that moves its result."""
    from lra import data
    from lra.base.targets import modules_of, resolve, targets_in
    from lra.metrics.metric import get
    from lra.settings.own import chosen, decides

    parts = {}
    # A metric decides which checkpoint is the best; phase one has its own, an accuracy.
    names = [] if run.pretrain.is_the_run else data.of(run.task).metric_names
    for name in names:
        module = type(get(name)).__module__
        if module not in SHARED["the training step"] and find_source(module) is not None:
            parts[f"{CHOSEN}metric {name}"] = [module]
    for setting, options in chosen(run):
        if not decides(setting, options):
            continue
        # What builds an optimiser or a schedule decides the result too.
        modules = [] if setting.startswith("callbacks.") else ["lra.training.custom"]
        for target in targets_in(options):
            modules += modules_of(resolve(setting, target))
        if modules:
            # With a space in callbacks.ema: a dot in a key would make dotted names ambiguous.
            parts[f"{CHOSEN}{setting.replace('.', ' ')}"] = modules
    return parts


def note_other_code(folder: Path) -> None:
    """Say which run of the same settings is kept, where one with other code begins anew."""
    same = folder.parents[1].glob(f"{folder.parent.name.partition('-')[0]}*/{folder.name}")
    if not folder.exists() and (others := sorted(same, key=lambda f: f.stat().st_mtime)):
        print(f"the code has changed since {others[-1]}: beginning anew, that folder is kept")


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
                f"{path} is of an earlier version: run `lra records migrate` on its folder"
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
