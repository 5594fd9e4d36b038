"""Rounds over all cases, so that other work of the machine slows all of them.

Every round starts new processes, without the memory, the caches and the threads of earlier cases.
"""

from __future__ import annotations

import math
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from lra.base.config import UserError
from lra.bench.rows import BenchRow
from lra.bench.worker import BenchCase, BenchMeter, BenchRules, rows_of, work

PATIENCE = 100  # a process may take this many times the seconds that one call may take


def rounds(cases: Sequence[BenchCase], rules: BenchRules) -> Iterator[tuple[int, list[BenchRow]]]:
    """After every round its number and all rows so far: an interrupted benchmark keeps them.

    Memory is measured in the first round only; cases that were stopped are not measured again.
    """
    rows: dict[tuple[str, str, int, str], BenchRow] = {}
    stopped: set[tuple[str, str, int]] = set()
    for number in range(1, rules.rounds + 1):
        for process, members in _by_process(cases, stopped).items():
            start = time.perf_counter()
            for row in ask(members, BenchMeter(rules, memory=number == 1)):
                known = rows.setdefault((row.group, row.case, row.n, row.measure), row)
                if known is not row and row.measure != "flops":
                    known.values += row.values
            seconds = time.perf_counter() - start
            print(f"round {number}/{rules.rounds}  {process}  {seconds:.0f} s", flush=True)
        if all(row.stopped or row.measure == "flops" for row in rows.values()):
            reason = next(row.stopped for row in rows.values() if row.stopped)
            raise UserError(f"nothing was measured: {reason}")
        yield number, list(rows.values())
        stopped = {(row.group, row.case, row.n) for row in rows.values() if row.stopped}


def _by_process(
    cases: Sequence[BenchCase], stopped: set[tuple[str, str, int]]
) -> dict[str, list[BenchCase]]:
    found: dict[str, list[BenchCase]] = {}
    for case in cases:
        left = [n for n in case.lengths if (case.group, case.name, n) not in stopped]
        if left:
            process = f"{case.group}: {case.name}" if case.alone else case.group
            found.setdefault(process, []).append(replace(case, lengths=left))
    return found


def ask(cases: Sequence[BenchCase], meter: BenchMeter) -> list[BenchRow]:
    """The rows that a new process measures. If it dies or gets stuck, the missing rows have that as
    their reason."""
    spawn = multiprocessing.get_context("spawn")  # not a fork: torch may have started threads
    rows, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=work, args=(theirs, cases, meter))
    process.start()
    theirs.close()
    limit = min(meter.rules.timeout, PATIENCE * meter.rules.seconds)
    end = time.monotonic() + limit
    found: list[BenchRow] = []
    try:
        while rows.poll(None if limit == math.inf else max(0.0, end - time.monotonic())):
            found.append(rows.recv())
        fate = f"no answer within {limit:g} s"
    except EOFError:
        process.join()
        fate = "killed" if (process.exitcode or 0) < 0 else "failed"
    finally:
        process.kill()
        process.join()
    there = {(row.case, row.n) for row in found}
    for case in cases:
        missing = [n for n in case.lengths if (case.name, n) not in there]
        if missing:
            print(f"{case.name}: {fate} at n = {missing[0]:,}", file=sys.stderr)
        found += [row for n in missing for row in rows_of(case, n, {}, fate)]
    return found
