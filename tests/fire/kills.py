"""Kills at random moments: kill -9, SIGTERM and Ctrl-C, up to three in a row, then a free run."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lra.checkpoints import load_checkpoint
from lra.runs import read_metrics

from .faults import completes, count
from .forks import SIGNALS, Ending, Fork, ended_well
from .ledger import Ledger
from .works import EVERY, Facts, Work, Works, damaged, finished, run_folder

IN_A_ROW = 3


def strike(works: Works, work: Work, signum: int, seconds: float) -> Ending:
    """Start the work and send it a signal after so many seconds."""
    fork = Fork(lambda: work.do(works.home), works.log)
    end = time.monotonic() + seconds
    while fork.running() and time.monotonic() < end:
        time.sleep(0.001)
    if fork.running():
        fork.kill(signum)
    return fork.wait()


def series(
    works: Works, work: Work, seed: int, expected: Facts, length: float
) -> tuple[list[str], list[str]]:
    """The signals that one series sent, and what went wrong. The moments are drawn from the seed;
    which call they meet depends on the machine."""
    draw, sent, problems = random.Random(f"{work.name} {seed}"), [], []
    works.fresh(work)
    ending = None
    for _ in range(draw.randint(1, IN_A_ROW)):
        name = draw.choices(list(SIGNALS), [2, 1, 1])[0]
        before = finished(work, works.home)
        ending = strike(works, work, SIGNALS[name], draw.uniform(0, length))
        problems += _again(before, finished(work, works.home))
        if ending.code == 0:  # it had finished before
            break
        sent.append(name)
        if not ended_well(ending):
            problems.append(f"{name}: {ending}")
        problems += damaged(works.home)
        if work.name == "train":
            problems += _resumes_late_enough(works)
    before = finished(work, works.home)
    problems += completes(works, work, expected)
    problems += _again(before, finished(work, works.home))
    return sent, problems


def _again(before: dict[Path, Any], after: dict[Path, Any]) -> list[str]:
    return [f"{path} was made again" for path in before if after.get(path) != before[path]]


def _resumes_late_enough(works: Works) -> Iterator[str]:
    """At most `trainer.checkpoint_every` steps are done again, as docs/runs.md says."""
    try:
        folder = run_folder(works.home)
    except StopIteration:  # killed before the run had a folder
        return
    rows = [int(row["step"]) for row in read_metrics(folder / "metrics.csv")]
    last = max(rows, default=0)
    if last <= EVERY:
        return
    step = load_checkpoint(folder / "checkpoints" / "last.ckpt")["global_step"]
    if step < last - EVERY:
        yield f"step {last} is in metrics.csv, the checkpoint is of step {step}"


def rain(works: Works, ledger: Ledger, wanted: int, names: list[str] | None = None) -> None:
    """Until this many kills have been survived by each work, going on where the ledger ends."""
    for work in works.all.values():
        if names and work.name not in names:
            continue
        _, expected = count(works, work)
        works.fresh(work)
        length = 1.05 * Fork(lambda work=work: work.do(works.home), works.log).wait().seconds
        part = ledger.part("kills", work.name)
        share = wanted if work.name == "train" else wanted // 4
        while part["done"] < share:
            seed = part["seeds"] = part.get("seeds", 0) + 1
            sent, problems = series(works, work, seed, expected, length)
            for name in sent:
                ledger.count(part, name, f"{work.name}, seed {seed}", problems)
                problems = []
