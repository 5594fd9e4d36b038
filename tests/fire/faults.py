"""Every call to the disk in a short run fails once in every way, and the next start recovers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .disk import KINDS, FailingDisk, Fault
from .forks import Ending, Fork, ended_well
from .ledger import Ledger
from .works import Facts, Work, Works, damaged, leftovers

EVENTS = "events"  # file of the calls that a fork counted


def enumerate_faults(events: list[str]) -> list[Fault]:
    return [Fault(at, kind) for at, what in enumerate(events) for kind in KINDS[what]]


def count(works: Works, work: Work) -> tuple[list[str], Facts]:
    """The calls of a run in which nothing fails, and its outcome."""
    works.fresh(work)
    disk = FailingDisk(works.home)

    def command() -> None:
        with disk.mounted():
            work.do(works.home)
        works.log.with_name(EVENTS).write_text("\n".join(disk.events), encoding="utf-8")

    ending = Fork(command, works.log).wait()
    if ending.code:
        raise RuntimeError(f"{work.name} fails on a healthy disk:\n{ending.out}")
    return works.log.with_name(EVENTS).read_text(encoding="utf-8").split(), work.outcome(works.home)


def survive(works: Works, work: Work, fault: Fault, expected: Facts) -> Iterator[str]:
    """What went wrong in one trial; nothing if it went as it should."""
    works.fresh(work)
    with_fault = FailingDisk(works.home, fault)

    def command() -> None:
        with with_fault.mounted():
            work.do(works.home)

    ending = Fork(command, works.log).wait()
    yield from _judge(ending, works.home, fault)
    yield from damaged(works.home)
    yield from completes(works, work, expected)


def _judge(ending: Ending, home: Path, fault: Fault) -> Iterator[str]:
    dies, harmless = "kill" in fault.kind, fault.kind in ("short", "slow")
    if dies and ending.code != -9:
        yield f"not killed: {ending}"
    elif harmless and ending.code != 0:
        yield f"harmless, but {ending}"
    elif not dies and not ended_well(ending):
        yield f"not one sentence: {ending}"
    elif ending.refusal is not None and str(home) not in ending.refusal:
        yield f"does not name the place: {ending.refusal}"


def completes(works: Works, work: Work, expected: Facts) -> Iterator[str]:
    """The same command again ends as a run that nothing disturbed."""
    command = work.again or work.do
    ending = Fork(lambda: command(works.home), works.log).wait()
    there = work.once and "is there already" in str(ending.refusal)  # it must then be complete
    if ending.code and not there:
        yield f"the next start: {ending}"
        return
    found = work.outcome(works.home)
    yield from (f"{key} differs" for key in expected if found.get(key) != expected[key])
    unexpected = {*(found.keys() - expected.keys()), *leftovers(works.home)}
    yield from (f"{path} is left over" for path in sorted(unexpected))


def burn(works: Works, ledger: Ledger, names: list[str] | None = None, every: int = 1) -> None:
    """Try every fault of every work (or each `every`-th), going on where the ledger ends."""
    for work in works.all.values():
        if names and work.name not in names:
            continue
        events, expected = count(works, work)
        faults = enumerate_faults(events)[::every]
        part = ledger.part("faults", work.name, calls=len(events), of=len(faults))
        for number in range(part["done"], len(faults)):
            fault = faults[number]
            problems = list(survive(works, work, fault, expected))
            what = f"{events[fault.at]} {fault.at} {fault.kind}"
            ledger.count(part, fault.kind, what, problems)
