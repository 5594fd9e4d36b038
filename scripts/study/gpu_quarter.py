"""A quarter of an hour of a GPU: its tests, its benchmarks, then full runs, in calls of minutes.

    python scripts/study/gpu_quarter.py [--minutes 9] [--only tests|bench|queue] [--list]

Call it again until no run is left. Every result is written at once into `gpu-quarter/`: what a step
printed as STEP.txt, the records of finished runs as .jsonl with their answers as .npz. A step that
ended well and a run that has a record are not repeated, and a run that was stopped goes on from its
checkpoint. scripts/study/queue.yaml lists the runs.

Nothing needs `make` or .venv: it takes the interpreter that runs it, or that of --python.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from gpu.call import ROOT, Call

sys.path.insert(0, str(ROOT))  # `lra` and `luna`, where they are not installed

from gpu.jobs import Data, Entry, jobs_left, read_queue
from gpu.scheduler import run_queue, summary
from gpu.steps import EARLY, STEPS, begin_step, finish_step, is_done, words_of

from lra.base.errors import UserError

QUEUE = Path(__file__).with_name("queue.yaml")


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
    parser.add_argument("--queue", type=Path, default=QUEUE, metavar="FILE")
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
