"""A run on disk: its identity, folder, lock, status and result. File names are known only here.

    runs/<task>/<protocol>/<model>/<attention>/<identity>-<code>/seed-<n>/
        config.yaml   metrics.csv   status.json   checkpoints/{last,best}.ckpt   lock
        result.json   answers.npz

Phase one of a pretrained run (lra/model/pretrain.py) is a run with a folder of its own, in which
`pretrained.json` stands for `result.json`; `begun_with.json` in the folder of phase two repeats it.

`identity` is the hash of settings and data, `code` that of the code (lra/base/code.py): a run of
other code has another folder, and the older one is kept. A repetition (`rerun=true`) is in
`seed-<n>-attempt-<k>`. `result.json` appears, complete, only when a run has finished.
`status.json` says running, interrupted, failed or finished. The lock is the kernel's (flock), which
releases it when the process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from lra.base.code import PRETRAINING, SHARED, code_of
from lra.base.config import Objective, UserError, readable
from lra.base.disk import disk_errors, read_json, take_lock, write_json
from lra.settings.compose import Run
from lra.settings.experiment import SCHEMA_VERSION

RESULT, PHASE_ONE = "result.json", "pretrained.json"  # of a run; of one that only pretrains
PROGRESS_EVERY = 5.0  # seconds between updates of status.json


def digest(facts: dict[str, Any]) -> str:
    """Hash a record's facts, which hold the hash themselves, so that an edited one is noticed."""
    content = {key: value for key, value in facts.items() if key != "digest"}
    return hashlib.sha256(text_of(content).encode()).hexdigest()[:16]


def text_of(facts: dict[str, Any]) -> str:
    return json.dumps(facts, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


class RunFolder:
    """The folder of one run with today's code. With `rerun` it is that of the latest attempt, or,
    with `again` too, of the one after it if that has finished."""

    def __init__(self, run: Run, fingerprint: str, *, again: bool = False):
        pretrained = run.pretrain.name is not Objective.none
        parts = SHARED | PRETRAINING if pretrained else SHARED
        self.identity = run.experiment.identity(fingerprint)
        self.code = code_of(run.attention["name"], parts)
        result = PHASE_ONE if run.pretrain.is_the_run else RESULT
        self.path, self.attempt = _folder(run, self.identity, self.code.hash, result, again)
        self.config, self.metrics = self.path / "config.yaml", self.path / "metrics.csv"
        self.result_file, self.status_file = self.path / result, self.path / "status.json"
        self.begun_with = self.path / "begun_with.json"
        self.answers = self.path / "answers.npz"
        self.last = self.path / "checkpoints" / "last.ckpt"
        self.best = self.path / "checkpoints" / "best.ckpt"
        self._started = _now()
        self._begun = self.status().get("begun", self._started)  # the first time
        self._updated = 0.0

    @property
    def name(self) -> str:
        return self.path.parent.name

    def changed_code(self) -> str:
        """Say what has changed in the code since the latest run of these settings, and that its
        folder is kept; empty where that run had this code, or there is none."""
        if self.config.exists():
            return ""
        seed = self.path.name.partition("-attempt-")[0]
        configs = self.path.parents[1].glob(f"{self.identity}*/{seed}/config.yaml")
        for config in sorted(configs, key=lambda file: -file.stat().st_mtime):
            older, facts = config.parent, _read_config(config)
            if facts.get("codes") == [self.code.hash]:
                break
            changed = self.code.changed_since(facts.get("code") or {})
            if result := read_result(older / self.result_file.name):
                how = f"({score_of(result)})"
            elif (older / "checkpoints" / "last.ckpt").exists():
                how = "was interrupted"
            else:
                continue
            return (
                f"the code of {changed} has changed since {older} {how}: beginning anew, that "
                "folder is kept"
            )
        return ""

    def code_facts(self) -> dict[str, Any]:
        return {"codes": [self.code.hash], "code": self.code.parts}

    @contextlib.contextmanager
    def lock(self, wait: Callable[[str], None] | None = None) -> Iterator[None]:
        """Hold the lock of this run inside the block. While another process holds it, call `wait`
        with who that is; UserError where there is no `wait`."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            # Without a buffer: closing would write it once more to a disk that is full.
            handle = (self.path / "lock").open("a+b", buffering=0)
        with handle:
            while not take_lock(handle, self.path):
                handle.seek(0)
                holder = handle.read().decode(errors="replace").strip() or "another process"
                if wait is None:
                    raise UserError(
                        f"{self.path} is being run by {holder}; wait for it, or stop it first"
                    )
                wait(holder)
            with writing(self.path):
                handle.truncate(0)
                handle.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
            yield

    def result(self) -> dict[str, Any] | None:
        return read_result(self.result_file)

    def status(self) -> dict[str, Any]:
        return read_json(self.status_file) or {"status": "new"}

    def set_status(self, status: str, **facts: Any) -> None:
        facts = {"pid": os.getpid(), "host": socket.gethostname(), "begun": self._begun,
                 "started": self._started} | facts  # fmt: skip
        with writing(self.path):
            write_json(self.status_file, {"status": status, "updated": _now()} | facts)

    def ensure_finished(self) -> None:
        """Set the status of a run that was killed between its result and its status."""
        if self.status()["status"] != "finished":
            self.set_status("finished")

    def progress(self, step: int, steps: int) -> None:
        if time.monotonic() - self._updated > PROGRESS_EVERY:
            self._updated = time.monotonic()
            self.set_status("running", step=step, steps=steps)

    def finish(self, result: dict[str, Any]) -> None:
        result = {
            "schema": SCHEMA_VERSION,
            "status": "finished",
            "identity": self.identity,
            "attempt": self.attempt,
            **self.code_facts(),
        } | result
        result["times"] = {"begun": self._begun, "started": self._started, "finished": _now()}
        with writing(self.path):
            write_json(self.result_file, result | {"digest": digest(result)})
        self.set_status("finished")


def _folder(run: Run, identity: str, code: str, result: str, again: bool) -> tuple[Path, int]:
    """Decide the folder of a run, and which attempt that is. Every folder is of one code: one that
    an earlier version of luna-lra has resumed with other code is passed over."""
    group = Path(run.runs_dir) / run.task.name / run.protocol.name / run.model.name
    first = group / run.attention["name"] / f"{identity}-{code}" / f"seed-{run.seed}"
    path, attempt = first, 1
    while True:
        following = first.with_name(f"{first.name}-attempt-{attempt + 1}")
        of_other_code = _read_config(path / "config.yaml").get("codes", [code]) != [code]
        repeated = run.rerun and (following.exists() or (again and (path / result).exists()))
        if not (of_other_code or repeated):
            return path, attempt
        path, attempt = following, attempt + 1


def _read_config(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    with readable(path, "remove that folder and run again"):
        return dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {})


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
    if "held_out" in result:
        return f"loss {result['held_out']['loss']:.3f} on held-out training inputs"
    return f"test accuracy {result['test']['accuracy']:.2%}"


def read_result(path: Path) -> dict[str, Any] | None:
    """Read the result of a finished run or phase one; None where there is no such file."""
    result = read_json(path)
    wanted = {"held_out"} if path.name == PHASE_ONE else {"test", "dev"}
    if result is not None and not wanted <= result.keys():
        raise UserError(f"{path} is not the result of a run; remove it and run again")
    return result


def read_metrics(path: Path) -> list[dict[str, str]]:
    """Read the complete rows of a metrics.csv; a last line cut short by a kill is left out."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1])))


def writing(path: Path) -> contextlib.AbstractContextManager[None]:
    """Turn errors of the disk into UserError, for blocks that write into a run's folder."""
    return disk_errors(path, "point runs_dir elsewhere; the same command then resumes the run")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
