"""A training of two processes, one of which is killed: the other must end too, then it resumes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.lra.conftest import REPOSITORY, environment

from .ledger import Ledger
from .sweeps import MARK, marked
from .works import SHORT, Facts, Work, Works, damaged, finished, trained

NAME = "train, two processes"
HOW = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "data_dir={home}/data",
       "runs_dir={home}/runs")  # fmt: skip
BLOWS = ("SIGKILL of the first", "SIGKILL of the second", "SIGTERM", "Ctrl-C")
ENDS_WITHIN = 60.0  # seconds after the blow


class Pair:
    def __init__(self, home: Path, log: Path):
        self.log = log
        words = [word.format(home=home) for word in (*SHORT, *HOW)]
        self.environment = environment() | {MARK: str(log)}
        self.started = time.monotonic()
        with log.open("wb") as out:
            self.first = subprocess.Popen(
                [sys.executable, "-m", "lra", "train", *words], cwd=REPOSITORY, stdout=out,
                stderr=out, env=self.environment, start_new_session=True,
            )  # fmt: skip

    def hit(self, blow: str) -> None:
        if blow == "Ctrl-C":
            os.killpg(self.first.pid, signal.SIGINT)
        elif blow == "SIGTERM":
            self.first.terminate()
        else:
            others = [pid for pid in marked(str(self.log)) if pid != self.first.pid]
            second = others if blow.endswith("second") else []
            os.kill([*second, self.first.pid][0], signal.SIGKILL)

    def end(self, seconds: float) -> Iterator[str]:
        """Wait for all its processes; what is there after so many seconds is a problem."""
        limit = time.monotonic() + seconds
        while (left := marked(str(self.log))) or self.first.poll() is None:
            if time.monotonic() > limit:
                yield f"{len(left)} processes do not end"
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                limit += seconds
            time.sleep(0.1)


def undisturbed(works: Works, work: Work) -> tuple[Facts, float]:
    works.fresh(work)
    pair = Pair(works.home, works.log)
    problems = list(pair.end(600))
    if problems or pair.first.returncode:
        raise RuntimeError(f"{NAME} fails undisturbed:\n{works.log.read_text(encoding='utf-8')}")
    return trained(works.home), time.monotonic() - pair.started


def trial(works: Works, work: Work, expected: Facts, blow: str, after: float) -> Iterator[str]:
    works.fresh(work)
    pair = Pair(works.home, works.log)
    while pair.first.poll() is None and time.monotonic() < pair.started + after:
        time.sleep(0.01)
    if pair.first.poll() is None:
        pair.hit(blow)
    yield from pair.end(ENDS_WITHIN)
    yield from damaged(works.home)
    before = finished(work, works.home)
    pair = Pair(works.home, works.log)
    yield from pair.end(600)
    if pair.first.returncode:
        yield f"the next start: exit code {pair.first.returncode}"
        return
    found = trained(works.home)
    yield from (f"{key} differs" for key in expected if found.get(key) != expected[key])
    yield from (
        f"{p} was made again" for p, s in before.items() if finished(work, works.home)[p] != s
    )


def strike(works: Works, ledger: Ledger, wanted: int) -> None:
    """So many blows, going on where the ledger ends."""
    work = works.all["train"]
    expected, length = undisturbed(works, work)
    part = ledger.part("kills", NAME)
    while part["done"] < wanted:
        seed = part["seeds"] = part.get("seeds", 0) + 1
        draw = Random(f"{NAME} {seed}")
        blow = BLOWS[seed % len(BLOWS)]
        problems = list(trial(works, work, expected, blow, draw.uniform(0, length)))
        ledger.count(part, blow.split()[0], f"{NAME}, seed {seed}, {blow}", problems)
