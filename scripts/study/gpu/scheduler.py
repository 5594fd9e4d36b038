"""Runs side by side on one GPU, for as long as a call lasts."""

from __future__ import annotations

import dataclasses
import json
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gpu.call import POLL, STOPPING, Call, Process, say
from gpu.jobs import Data, Entry, Job, export, jobs_left
from lra.base.disk import write_atomically

STARTING = 20.0  # seconds in which a run imports and compiles, and leaves the GPU alone
STOPPED = (129, 130, 142, 143)  # exit codes of runs that wrote a checkpoint
LOCKED = "is being run by another process"
TRIES = 2


@dataclasses.dataclass
class Active:
    """A run that trains now."""

    job: Job
    process: Process
    work: float  # seconds of the GPU that it still needs, as far as we know


class Failures:
    """How often each run has failed, kept over calls. After one failure it is tried without
    compilation, which changes the rounding and not the identity; after two it is left alone."""

    def __init__(self, file: Path):
        self._file = file
        self._times: dict[str, int] = {}
        if file.exists():
            self._times = json.loads(file.read_text(encoding="utf-8"))

    def of(self, job: Job) -> int:
        return self._times.get(job.title, 0)

    def add(self, job: Job) -> None:
        self._times[job.title] = self.of(job) + 1
        write_atomically(self._file, (json.dumps(self._times, indent=1) + "\n").encode())


def train_words(job: Job, *, failures: int, minutes: float) -> list[str]:
    words = [*job.entry.words, f"seed={job.seed}", f"limit_minutes={minutes:.2f}"]
    if failures:
        words = [word for word in words if not word.startswith("trainer.compile=")]
        words.append("trainer.compile=off")
    return ["-m", "lra", "train", *words]


class Queue:
    """Runs side by side. Several runs on one GPU take the sum of their times, so a run begins only
    if its work and that of all that train now fit into what is left of the call."""

    def __init__(
        self,
        jobs: Iterable[Job],
        call: Call,
        *,
        side_by_side: int,
        is_ready: Callable[[Entry], bool],
        words: Callable[..., list[str]] = train_words,
    ):
        self.call, self.side_by_side, self.is_ready = call, side_by_side, is_ready
        self.words = words
        self.failures = Failures(call.out / "failed.json")
        self.waiting = [job for job in jobs if self.failures.of(job) < TRIES]
        self.active: list[Active] = []
        self.done: list[Job] = []
        self._looked = time.monotonic()

    def turn(self) -> bool:
        """Collect what has ended and begin what fits; False if nothing can be done any more."""
        self._count_work()
        for active in [a for a in self.active if a.process.poll() is not None]:
            self.active.remove(active)
            self._end(active)
        while len(self.active) < self.side_by_side and (job := self._next()) is not None:
            self.waiting.remove(job)
            self._begin(job)
        return bool(self.active)

    def stop(self) -> None:
        """Have all runs write their checkpoints."""
        for active in self.active:
            active.process.interrupt()
        patience = time.monotonic() + STOPPING
        while self.active and time.monotonic() < patience:
            for active in [a for a in self.active if a.process.poll() is not None]:
                self.active.remove(active)
                self._end(active)
            time.sleep(POLL / 5)
        for active in self.active:
            active.process.kill()
            say(f"{active.job.title}: killed, its last checkpoint stands")

    def _count_work(self) -> None:
        now = time.monotonic()
        share = (now - self._looked) / max(1, len(self.active))
        self._looked = now
        for active in self.active:
            if active.process.seconds > STARTING:
                active.work = max(0.0, active.work - share)

    def _next(self) -> Job | None:
        """The first that fits. If none does and the GPU is idle, the first of all: it cannot end
        in this call, but it goes on from its checkpoint in the next one."""
        ready = [job for job in self.waiting if self.is_ready(job.entry)]
        work = sum(active.work for active in self.active)
        left = self.call.left - STARTING
        for job in ready:
            if work + job.seconds <= left:
                return job
        return ready[0] if ready and not self.active and left > STARTING else None

    def _begin(self, job: Job) -> None:
        failures = self.failures.of(job)
        # It stops by itself if this script is killed.
        minutes = max(0.1, (self.call.left + STOPPING / 2) / 60)
        words = self.words(job, failures=failures, minutes=minutes)
        name = f"{job.title}.txt".replace("/", "-").replace(" ", "_")
        log = Path(job.entry.run.runs_dir) / "logs" / name
        self.active.append(Active(job, self.call.start(words, log), job.seconds))
        how = ", not compiled" if failures else ""
        say(f"{job.title}: started{how}, {len(self.active)} side by side")

    def _end(self, active: Active) -> None:
        job, process = active.job, active.process
        code = process.poll()
        took = f"{process.seconds:.0f} s"
        if code == 0:
            self.done.append(job)
            result = next((x for x in process.tail().splitlines() if x.startswith("done:")), "done")
            say(f"{job.title}: {result} ({took})")
            export(Path(job.entry.run.runs_dir), self.call.out)
        elif code in STOPPED or (code is not None and -code == signal.SIGTERM):
            say(f"{job.title}: stopped after {took}")
        elif LOCKED in process.tail():
            say(f"{job.title}: another process has it")
        else:
            say(f"{job.title}: FAILED with exit code {code} after {took}\n{process.tail()}")
            self.failures.add(job)
            if self.failures.of(job) < TRIES:
                self.waiting.append(job)


def run_queue(entries: Sequence[Entry], data: Data, call: Call, side_by_side: int) -> None:
    for runs_dir in {entry.run.runs_dir for entry in entries}:
        export(Path(runs_dir), call.out)  # what an earlier call had no time for
    jobs = jobs_left(entries, call.out)
    queue = Queue(jobs, call, side_by_side=side_by_side, is_ready=data.ready)
    try:
        while call.left > 0 and (queue.turn() or data.waiting):
            time.sleep(POLL)
    finally:
        queue.stop()
    say(f"{len(queue.done)} runs done in this call; {summary(entries, call.out)}")


def summary(entries: Sequence[Entry], out: Path) -> str:
    jobs = jobs_left(entries, out)
    every = sum(len(entry.seeds) for entry in entries)
    minutes = sum(job.seconds for job in jobs) / 60
    return f"{len(jobs)} of {every} runs are left, about {minutes:.0f} minutes of an H100"
