"""The time of all cases in interleaved rounds, and their peak memory.

All cases of a length are timed in turn, A B A B ..., in one process: other work of the machine
slows all of them, and ratios are taken within a round. Memory on a CPU is that of the process.
"""

from __future__ import annotations

import ctypes
import gc
import math
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch.utils.benchmark import Timer

from lra.base.errors import UserError, first_line
from lra.bench.result import ANY, BenchRow

LEAST = 0.2  # seconds of calls per case and round
SECONDS, MIB = 10.0, 4096.0  # a case goes no further where a call takes more
# What is done with something that was built; a number is only recorded.
Calls = dict[str, Callable[[], object] | float]
Build = Callable[[int, torch.device], Calls]  # at a length


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    stem: str  # of its files; the machine is added
    title: str
    notes: Sequence[str]
    cases: Mapping[str, Build]
    base: str = ""  # the case that times are divided by
    derive: Callable[[list[BenchRow]], list[BenchRow]] = lambda rows: []  # rows from others


def measure_cases(benchmark: Benchmark, options: Namespace) -> list[BenchRow]:
    """Measure all cases at one length, then at the next. A case ends at the first length where it
    fails, or takes more than SECONDS, or would take more than MIB if its memory grew with the
    square of the length; at a single length nothing is limited."""
    rows: list[BenchRow] = []
    stopped: dict[str, str] = {}
    per_square: dict[str, float] = {}  # bytes / n² at the length before
    torch.set_num_threads(options.threads)
    for n in sorted(options.lengths):
        timers: list[tuple[BenchRow, Timer]] = []
        for case, build in benchmark.cases.items():
            row = partial(BenchRow, group=options.what, case=case, n=n)
            try:
                if per_square.get(case, 0) * n**2 > MIB * 2**20:
                    raise UserError(f"> {MIB:,.0f} MiB")
                calls = {} if case in stopped else build(n, torch.device(options.device))
                numbers = {name: call for name, call in calls.items() if not callable(call)}
                ready = []
                for name, call in calls.items():
                    if callable(call):
                        seconds, numbers[f"{name}_bytes"] = first_calls(call, options.device)
                        if seconds > SECONDS and len(options.lengths) > 1:
                            raise UserError(f"> {SECONDS:g} s")
                        timer = Timer("f()", globals={"f": call}, num_threads=options.threads)
                        ready.append((row(measure=f"{name}_seconds"), timer))
                rows += [row(measure=name, values=[value]) for name, value in numbers.items()]
                timers += ready
                per_square[case] = max(numbers.values(), default=0) / n**2
            except Exception as error:
                kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
                stopped.setdefault(case, f"{kind}{first_line(error)}")
                print(f"{case}, n = {n:,}: {stopped[case]}", file=sys.stderr)
            if case in stopped:
                rows.append(row(measure=ANY, stopped=stopped[case]))
        for i in range(options.rounds):
            print(f"n = {n:,}: round {i + 1} of {options.rounds}", file=sys.stderr, flush=True)
            for timed, timer in timers:
                timed.values.append(timer.blocked_autorange(min_run_time=LEAST).median)
        rows += [timed for timed, _ in timers]
    if not any(row.values for row in rows):
        raise UserError(f"nothing was measured: {next(iter(stopped.values()))}")
    return rows + benchmark.derive(rows)


def first_calls(call: Callable[[], object], device: str) -> tuple[float, float]:
    """Measure seconds and peak bytes of the second call; the first loads and compiles."""
    call()
    gc.collect()
    before, _ = _memory(device, forget_peak=True)
    start = time.perf_counter()
    call()
    peak = _memory(device)[1] - before
    return time.perf_counter() - start, peak


def _memory(device: str, *, forget_peak: bool = False) -> tuple[float, float]:
    """Bytes in use and at the peak; where the system does not say, not a number."""
    if device == "cuda":
        torch.cuda.synchronize()
        if forget_peak:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    if sys.platform != "linux":
        return math.nan, math.nan
    if forget_peak:
        ctypes.CDLL(None).malloc_trim(0)  # gives back what was freed
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    status = dict(line.split(":", 1) for line in lines)
    now, peak = (int(status[key].split()[0]) * 2**10 for key in ("VmRSS", "VmHWM"))
    return now, peak
