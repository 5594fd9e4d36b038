"""Many processes that start the same work at once, and clocks that jump: done once, by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from lra.data import prepare

from .faults import completes, count
from .forks import Fork, ended_well
from .ledger import Ledger
from .works import Facts, Work, Works, damaged

PROCESSES = 32
# What one process alone prints when it does the work.
MAKES = "it makes the data"  # a process that finds them ready ends with the same words as this one
ONCE = {"train": "training ", "prepare": MAKES, "export": "README.md",
        "download": "downloading ", "convert": "swapped in"}  # fmt: skip


def together(works: Works, work: Work, expected: Facts) -> Iterator[str]:
    works.fresh(work)
    start, make = time.monotonic() + 1.0, prepare._make

    def noted(*arguments: Any, **facts: Any) -> None:
        print(MAKES)
        make(*arguments, **facts)

    def command() -> None:
        prepare._make = noted
        time.sleep(max(0.0, start - time.monotonic()))
        work.do(works.home)

    logs = [works.log.with_name(f"log-{number}") for number in range(PROCESSES)]
    endings = [fork.wait() for fork in [Fork(command, log) for log in logs]]
    for ending in endings:
        if not ended_well(ending) or (ending.code and not _may_refuse(ending.refusal or "")):
            yield str(ending)
    if work.name in ONCE:
        did = [e for e in endings if not e.code and ONCE[work.name] in e.out]
        did = [ending for ending in did if "; waiting for it" not in ending.out]
        if len(did) != 1:
            yield f"{len(did)} processes did it"
    yield from damaged(works.home)
    yield from completes(works, work, expected)


def _may_refuse(sentence: str) -> bool:
    return " is being run by " in sentence or "is there already" in sentence


def jumping(works: Works, work: Work, expected: Facts, seed: int) -> Iterator[str]:
    """The wall clock jumps by up to a year, back and forth, whenever it is read."""
    works.fresh(work)
    draw, real, shown = Random(seed), time.time, time.strftime

    def command() -> None:
        time.time = lambda: real() + draw.uniform(-3e7, 3e7)
        time.strftime = lambda form, at=None: shown(form, at or time.localtime(time.time()))
        work.do(works.home)

    ending = Fork(command, works.log).wait()
    if ending.code:
        yield str(ending)
    yield from completes(works, work, expected)


def gather(works: Works, ledger: Ledger, rounds: int, names: list[str] | None = None) -> None:
    for work in works.all.values():
        if (names and work.name not in names) or work.name in ("evaluate", "data export"):
            continue
        _, expected = count(works, work)
        part = ledger.part("crowds", work.name)
        kinds: dict[str, Callable[[int], Iterator[str]]] = {
            "32 processes at once": lambda _, w=work, e=expected: together(works, w, e),
            "jumping clock": lambda seed, w=work, e=expected: jumping(works, w, e, seed),
        }
        while part["done"] < 2 * rounds:
            for kind, trial in kinds.items():
                problems = list(trial(part["done"]))
                ledger.count(part, kind, f"{work.name}, {kind} {part['done']}", problems)
