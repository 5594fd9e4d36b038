"""Sweeps under fire: jobs that are refused, diverge, hang or are killed, and a killed parent.

The same command is started three times: its parent is killed, its runs are killed and stopped for
ever, and it is left alone. `lra status` is asked all the while. An answer is right if the state of
each run was true within a moment of the question: a run is running while a process holds its lock,
as /proc/locks says, and done when its result is there.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from random import Random

from lra import status
from lra.data.prepare import find_or_prepare
from lra.runs import read_metrics
from lra.settings import compose
from tests.lra.conftest import REPOSITORY, SMALL, command, environment

from .ledger import Ledger

STEPS = 80  # of a run
SHORT = [word for word in SMALL if not word.startswith(("protocol.recipe.", "protocol.eval"))]
SHORT += [f"protocol.recipe.steps={STEPS}", "protocol.recipe.batch=8", "protocol.recipe.warmup=5",
          f"protocol.evaluation.every={STEPS // 2}", "trainer.checkpoint_every=20"]  # fmt: skip
BAD = ("-1", "1e+30")  # rates: refused, and too high
LAUNCHERS = {  # how many jobs; two at once; the limit of a run, which ends those that hang
    "laptop": (50, ("hydra.launcher.n_jobs=2", "limit_minutes=0.5")),
    "local": (6, ("limit_minutes=1.5",)),  # submitit starts all at once
    "ray": (10, ("hydra.launcher.init.address=local", "+hydra.launcher.init.num_cpus=2",
                 "hydra.launcher.remote.num_gpus=0", "limit_minutes=1.5")),
}  # fmt: skip
MARK = "LRA_UNDER_FIRE"  # environment variable by which the processes of a sweep are found
KILLS, HANGS = 6, 2  # runs that are hit in a sweep of 50
MOMENT = 2.0  # seconds between what is true and what a status file says
TOO_LONG = 1800.0


def marked(mark: str) -> list[int]:
    """The processes with this mark that have not ended."""
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (proc / "environ").read_bytes().split(b"\0"):
                found.append(int(proc.name))
        except OSError:  # it has ended, or is another user's
            continue
    return found


class Sweep:
    """One sweep and what is known of its runs."""

    def __init__(self, root: Path, launcher: str, jobs: int, draw: Random):
        self.root, self.runs, self.draw = root, root / "runs", draw
        seeds = max(1, jobs // 10)
        rates = [*(f"{0.001 * (i + 1):g}" for i in range(jobs // seeds - len(BAD))), *BAD]
        self.jobs, self.healthy = len(rates) * seeds, (len(rates) - len(BAD)) * seeds
        self.words = [
            *(*SHORT, f"data_dir={root / 'data'}", f"runs_dir={self.runs}"),
            *(f"hydra/launcher={launcher}", *LAUNCHERS[launcher][1]),
            *(f"protocol.recipe.lr={','.join(rates)}", f"seed={','.join(map(str, range(seeds)))}"),
        ]
        self.environment = environment() | {MARK: str(root), "JOBLIB_TEMP_FOLDER": str(root)}
        if launcher == "ray":
            token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}
            self.environment |= token | {"RAY_TMPDIR": f"/tmp/ray-{uuid.uuid4().hex[:8]}"}
        self.seen: dict[str, tuple[float, float]] = {}  # since and until when a lock was held
        self.stopped = set[int]()
        self.asked, self.events, self.problems = 0, list[str](), list[str]()

    def start(self, name: str, strikes: list[int], *, parent: int | None = None) -> str:
        """Start the sweep, send its runs these signals and kill it after `parent` results; returns
        what it printed once all its processes have ended."""
        log, end = self.root / name, time.monotonic() + TOO_LONG
        done = self.results()
        with log.open("wb") as out:
            words = [sys.executable, "-m", "lra", "train", "-m", *self.words]
            sweep = subprocess.Popen(words, cwd=REPOSITORY, env=self.environment, stdout=out,
                                     stderr=out, start_new_session=True)  # fmt: skip
        following = time.monotonic() + 3
        while (left := self.processes()) or sweep.poll() is None:
            time.sleep(0.2)
            self.problems += [f"{name}: lra status: {lie}" for lie in self.lies()]
            if strikes and time.monotonic() > following and self.strike(strikes[0]):
                strikes.pop(0)
                following = time.monotonic() + self.draw.uniform(1, 5)
            if parent is not None and len(self.results()) >= parent and sweep.poll() is None:
                sweep.kill()
                self.events.append("parent killed")
            if time.monotonic() > end:
                self.problems.append(f"{name}: {len(left)} processes do not end")
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
        for path, stamp in done.items():
            if self.results().get(path) != stamp:
                self.problems.append(f"{name}: {path} was made again")
        said = log.read_text(encoding="utf-8", errors="replace")
        if "Traceback" in said:
            self.problems.append(f"{name}: a traceback: {said[said.index('Traceback') :][:2000]}")
        return said

    def results(self) -> dict[str, int]:
        found = self.runs.rglob("result.json")
        return {str(p.parent.relative_to(self.runs)): p.stat().st_mtime_ns for p in found}

    def processes(self) -> list[int]:
        return marked(str(self.root))

    def holders(self) -> dict[str, int]:
        """The process that holds the lock of each run, as the kernel knows it."""
        rows = Path("/proc/locks").read_text(encoding="utf-8").splitlines()
        pids = {row.split()[-3]: int(row.split()[-4]) for row in rows if "FLOCK" in row}
        found = {}
        for lock in self.runs.rglob("seed-*/lock"):
            stat = lock.stat()
            key = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
            if key in pids:
                found[str(lock.parent.relative_to(self.runs))] = pids[key]
        now = time.monotonic()
        for name in found:
            since, until = self.seen.get(name, (now, now))
            self.seen[name] = (since if now - until < MOMENT else now, now)
        return found

    def lies(self) -> Iterator[str]:
        """Ask `lra status` and compare."""
        if not self.runs.is_dir():
            return
        held, results, asked = self.holders(), self.results(), time.monotonic()
        states = status.of_folder(self.runs)
        held_after, results_after = self.holders(), self.results()
        self.asked += 1
        for name, state, detail in ((s.name, s.state, s.detail) for s in states):
            since, until = self.seen.get(name, (asked, -TOO_LONG))
            steady = name in held and name in held_after and asked - since > MOMENT
            right = name in results_after if state == "done" else name not in results
            if state == "running":
                right &= asked - until < MOMENT
            elif state != "done":
                right &= not steady
            if state == "failed":
                right &= "the run diverged" in detail
            if not right:
                yield f"{state} {name} {detail}; held: {name in held}, {name in held_after}"

    def strike(self, signum: int) -> bool:
        """Send a signal to a run that trains, and that none has stopped: its limit ends that."""
        trains = [pid for name, pid in self.holders().items()
                  if len(read_metrics(self.runs / name / "metrics.csv")) > 1
                  and name not in self.results() and pid not in self.stopped]  # fmt: skip
        if trains:
            os.kill(pid := self.draw.choice(trains), signum)
            self.stopped |= {pid} if signum == signal.SIGSTOP else set()
            self.events.append({signal.SIGKILL: "run killed", signal.SIGSTOP: "run hangs"}[signum])
        return bool(trains)

    def judge(self, said: str) -> Iterator[str]:
        """What is wrong after a start that was left alone."""
        bad = self.jobs - self.healthy
        numbers = {word: int(n) for n, word in re.findall(r"(\d+) (done|finished before)", said)}
        if sum(numbers.values()) != self.healthy or f", {bad} failed" not in said:
            yield f"the summary: {said[-2000:]}"
        reasons = re.findall(r"^  failed  .*?recipe\.lr=([^\s:]+)", said, re.MULTILINE)
        if {*reasons} != {*BAD}:
            yield f"others failed: {reasons}"
        if len(self.results()) != self.healthy:
            yield f"{len(self.results())} of {self.healthy} have a result"
        for name in self.results():
            rows = read_metrics(self.runs / name / "metrics.csv")
            steps = [(int(row["step"]), bool(row["dev_loss"])) for row in rows]
            if steps != sorted({*steps}) or steps[-1][0] != STEPS:
                yield f"{name}: rows of metrics of the steps {steps}"
        done = command("-m", "lra", "status", *self.words)
        first, expected = done.stdout.partition("\n")[0], f"{self.healthy} done, {bad} failed"
        if done.returncode or first != f"{self.jobs} runs: {expected}":
            yield f"lra status of the sweep: {done.returncode} {first} {done.stderr}"


def burn(ledger: Ledger, names: list[str] | None, jobs: int | None) -> None:
    for launcher, (usual, _) in LAUNCHERS.items():
        if names and launcher not in names:
            continue
        part = ledger.part("sweeps", launcher)
        if part["done"]:
            continue
        root = Path(tempfile.mkdtemp(prefix="sweep-"))
        sweep = Sweep(root, launcher, jobs or usual, Random(launcher))
        run = compose([*SHORT, f"data_dir={root / 'data'}", f"runs_dir={sweep.runs}"])
        find_or_prepare(run.task, max_length=512, data_dir=run.data_dir)
        scale = min(1.0, sweep.jobs / 50)
        kills, hangs = max(1, round(KILLS * scale)), max(1, round(HANGS * scale))
        sweep.start("parent killed", [signal.SIGKILL] * kills, parent=sweep.healthy // 4)
        hits = [signal.SIGKILL] * kills + [signal.SIGSTOP] * hangs
        sweep.start("runs hit", sweep.draw.sample(hits, len(hits)))
        sweep.problems += sweep.judge(sweep.start("left alone", []))
        part.update(jobs=sweep.jobs, asked=sweep.asked)
        for event in [*sweep.events, *["bad setting"] * (sweep.jobs - sweep.healthy)]:
            ledger.count(part, event, f"sweep by {launcher}", sweep.problems)
            sweep.problems = []
        shutil.rmtree(root, ignore_errors=True)
