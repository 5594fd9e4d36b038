"""A quarter of an hour of a GPU: its tests, its benchmarks, then full runs, in calls of minutes.

    python scripts/gpu_quarter.py [--minutes 9] [--only tests|bench|queue] [--list]

Call it again until no run is left. Every result is written at once into `gpu-quarter/`: what a step
printed as STEP.txt, the records of finished runs as .jsonl with their answers as .npz. A step that
ended well and a run that has a record are not repeated, and a run that was stopped goes on from its
checkpoint. scripts/queue.yaml lists the runs.

Nothing needs `make` or .venv: it takes the interpreter that runs it, or that of --python.
"""

from __future__ import annotations

import time

START = time.monotonic()  # the minutes of a call begin here

import argparse  # noqa: E402
import contextlib  # noqa: E402
import dataclasses  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import shlex  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable, Iterable, Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # `lra` and `luna`, where they are not installed

import yaml  # noqa: E402

from lra.base.code import code_of  # noqa: E402
from lra.base.disk import write_atomically  # noqa: E402
from lra.base.errors import UserError  # noqa: E402

STEPS = ("environment", "tests", "bench")  # before the queue, in this order
EARLY = STEPS[:2]  # those that run while the queue is read
LIMITS = {"environment": 90.0, "tests": 240.0, "bench": 300.0}  # seconds
ENDED_WELL = "ended well"  # the last line of a step's output begins so
GPU_TEST = "mark.gpu"
STOPPING = 30.0  # seconds in which runs write their checkpoints at the end
STARTING = 20.0  # seconds in which a run imports and compiles, and leaves the GPU alone
STOPPED = (129, 130, 142, 143)  # exit codes of runs that wrote a checkpoint
LOCKED = "is being run by another process"
TRIES = 2
POLL = 0.5


def say(text: str) -> None:
    print(f"{time.monotonic() - START:6.0f} s  {text}", flush=True)


# ---------------------------------------------------------------------- processes


class Process:
    """A process whose output goes into a file; it is stopped with all that it started."""

    def __init__(self, words: Sequence[str], output: Path, environment: dict[str, str]):
        output.parent.mkdir(parents=True, exist_ok=True)
        self.output = output
        self.started = time.monotonic()
        with output.open("w", encoding="utf-8") as file:
            # A session of its own: Ctrl-C reaches this script alone, which then stops them all.
            self.popen = subprocess.Popen(
                words,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def poll(self) -> int | None:
        return self.popen.poll()

    def interrupt(self) -> None:
        """SIGTERM to the process alone: a run then writes its checkpoint by itself."""
        if self.poll() is None:
            self.popen.terminate()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def tail(self, lines: int = 8) -> str:
        text = self.output.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])


class Call:
    """This call of the script: how long it lasts, and whether somebody stops it."""

    def __init__(self, arguments: argparse.Namespace):
        self.end = START + 60 * arguments.minutes
        self.out: Path = arguments.out
        self.python: str = arguments.python
        self.stopped = False
        self.environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment["PYTHONPATH"] = os.pathsep.join(places)
        # Each compiler would else start a process for every core.
        self.environment.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
        self.environment.setdefault("OMP_NUM_THREADS", "1")

    @property
    def left(self) -> float:
        """Seconds of work: what comes after them is for checkpoints."""
        return 0.0 if self.stopped else self.end - STOPPING - time.monotonic()

    def stop(self, number: int, _: object) -> None:
        say(f"stopping: {signal.Signals(number).name}")
        self.stopped = True

    def start(self, words: Sequence[str], output: Path) -> Process:
        return Process([self.python, *words], output, self.environment)


# ---------------------------------------------------------------------- steps


def words_of(step: str, out: Path) -> list[str]:
    """The words of a step behind the interpreter; none where it cannot be done here."""
    if step == "environment":
        return ["-m", "torch.utils.collect_env"]
    if step == "tests":
        files = sorted((ROOT / "tests").rglob("test_*.py"))
        files = [file for file in files if GPU_TEST in file.read_text(encoding="utf-8")]
        # Their files only: the others would be imported, with packages that they alone need.
        return ["-m", "pytest", "-m", "gpu", *(str(file.relative_to(ROOT)) for file in files)]
    return ["-m", "lra", "bench", "gpu", "--write", str(out)]


def is_done(step: str, out: Path) -> bool:
    file = out / f"{step}.txt"
    if not file.exists():
        return False
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return bool(lines) and lines[-1].startswith(ENDED_WELL)


def begin_step(step: str, call: Call) -> Process | None:
    """Start a step, unless it has ended well or there is no time."""
    words = words_of(step, call.out)
    if not words or is_done(step, call.out) or call.left < 10:
        return None
    say(f"{step}: started")
    return call.start(words, call.out / f"{step}.txt")


def finish_step(step: str, process: Process | None, call: Call) -> None:
    """Wait for the end of a step that was begun, no longer than its limit and this call."""
    if process is None:
        return
    while process.poll() is None and process.seconds < LIMITS[step] and call.left > 0:
        time.sleep(POLL / 5)
    code = process.poll()
    process.kill()  # with what it may have left behind
    took = f"after {process.seconds:.0f} s"
    if code == 0:
        last = f"{ENDED_WELL} {took}"
    elif code is None:
        last = f"not finished {took}"
    else:
        last = f"FAILED with exit code {code} {took}"
    with process.output.open("a", encoding="utf-8") as file:
        file.write(f"\n{last}\n")
    say(f"{step}: {last}, see {process.output.name}")


# ---------------------------------------------------------------------- the queue


@dataclasses.dataclass(frozen=True)
class Entry:
    """Words of `lra train` for some seeds, composed."""

    group: str  # the words that it shares with others
    words: tuple[str, ...]  # all of them
    seeds: tuple[int, ...]
    seconds: float  # of a GPU on which nothing else runs
    again: bool  # only records of the attention's present code count
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
            again = row.get("again", False)
            run = compose(words)
            entries.append(Entry(group["words"], words, seeds, row["seconds"], again, run))
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
    code = code_of(entry.run.attention["name"]) if entry.again else {}
    part = f"the attention {entry.run.attention['name']}"
    experiment = entry.run.experiment
    done = set()
    for record in records:
        if record["identity"] != experiment.identity(record["data.fingerprint"]):
            continue
        if not entry.again or record["code"].get(part) == code[part]:
            done.add(record["seed"])
    return done


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


# ---------------------------------------------------------------------- running it


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


# ---------------------------------------------------------------------- the command


def summary(entries: Sequence[Entry], out: Path) -> str:
    jobs = jobs_left(entries, out)
    every = sum(len(entry.seeds) for entry in entries)
    minutes = sum(job.seconds for job in jobs) / 60
    return f"{len(jobs)} of {every} runs are left, about {minutes:.0f} minutes of an H100"


def show(entries: Sequence[Entry], out: Path) -> None:
    """Print the steps and the queue."""
    for step in STEPS:
        words = words_of(step, out)
        state = "done" if is_done(step, out) else "left" if words else "not there"
        print(f"{step:12} {state:9} {shlex.join(words)}")
    jobs, group = jobs_left(entries, out), ""
    for entry in entries:
        if entry.group != group:
            group = entry.group
            print(f"\nlra train {group}")
        seeds = [job.seed for job in jobs if job.entry is entry]
        state = f"seeds {', '.join(map(str, seeds))}" if seeds else "done"
        own = entry.words[len(shlex.split(group)) :]
        print(f"  {state:14} {entry.seconds:5.0f} s  {' '.join(own)}")
    print()
    print(summary(entries, out))


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A quarter of an hour of a GPU; repeat it.")
    parser.add_argument("--minutes", type=float, default=9, help="of this call (default: 9)")
    parser.add_argument("--list", action="store_true", help="print what is left, and run nothing")
    parser.add_argument("--out", type=Path, default=ROOT / "gpu-quarter", metavar="DIR")
    parser.add_argument("--jobs", type=int, default=6, help="runs side by side (default: 6)")
    choices = ("tests", "bench", "queue")
    parser.add_argument("--only", choices=choices, action="append", help="may be repeated")
    parser.add_argument("--queue", type=Path, default=ROOT / "scripts/queue.yaml", metavar="FILE")
    parser.add_argument("--python", default=sys.executable, help="default: the one that runs this")
    arguments = parser.parse_args(words)
    arguments.out, arguments.queue = arguments.out.resolve(), arguments.queue.resolve()
    return arguments


def work(arguments: argparse.Namespace) -> None:
    call = Call(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, call.stop)
    wanted = arguments.only or [*STEPS, "queue"]
    call.out.mkdir(parents=True, exist_ok=True)
    # Reading the queue and making its data take processors, the tests the GPU.
    begun = {step: begin_step(step, call) for step in EARLY if step in wanted}
    data = None
    try:
        if "queue" in wanted:
            entries = read_queue(arguments.queue)
            data = Data(entries, call)
        for step, process in begun.items():
            finish_step(step, process, call)
        if "bench" in wanted:
            finish_step("bench", begin_step("bench", call), call)
        if data is not None:
            run_queue(entries, data, call, arguments.jobs)
    finally:
        for process in [*begun.values(), *(data.processes if data else [])]:
            if process is not None:
                process.kill()


def main(words: Sequence[str] | None = None) -> int:
    arguments = parse(words)
    os.chdir(ROOT)  # folders of runs and data are relative to it
    try:
        if arguments.list:
            show(read_queue(arguments.queue), arguments.out)
        else:
            work(arguments)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
