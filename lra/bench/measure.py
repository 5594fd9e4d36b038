"""The cases of a benchmark, their time in interleaved rounds, and their peak memory.

All cases of a length are timed in turn, A B A B ..., in one process: other work of the machine
slows all of them, and ratios are taken within a round. Memory on a CPU is that of a new process.
"""

from __future__ import annotations

import ctypes
import gc
import math
import multiprocessing
import resource
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.benchmark import Timer

from lra.base.config import UserError, first_line
from lra.bench.result import ANY, BenchRow

# What is done with something that was built; a number is only recorded.
Calls = dict[str, Callable[[], object] | float]


@dataclass(frozen=True, kw_only=True)
class BenchCase:
    """Something to measure; `build` is sent to another process, so it must be picklable."""

    name: str
    build: Callable[[int, torch.device], Calls]  # at a length, on a device


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    stem: str  # of its files; the machine is added
    title: str
    notes: Sequence[str]
    cases: Sequence[BenchCase]
    lengths: Sequence[int] = ()  # without: those of the command line
    base: str = ""  # the case that times are divided by
    derive: Callable[[list[BenchRow]], list[BenchRow]] = lambda rows: []  # rows from others


def measure_cases(benchmark: Benchmark, options: Namespace) -> list[BenchRow]:
    """Measure all cases at one length, then at the next. A case ends at the first length where it
    fails, or where a call takes more than options.seconds or options.mib."""
    rows: list[BenchRow] = []
    stopped: dict[str, str] = {}
    for n in sorted(benchmark.lengths or options.lengths):
        timers: list[tuple[BenchRow, Timer]] = []
        for case in benchmark.cases:
            row = partial(BenchRow, group=options.what, case=case.name, n=n)
            try:
                if case.name not in stopped:
                    peaks, made = _measured_once(case, n, options)
                    for name, call in made.items():
                        if callable(call):
                            timer = Timer("f()", globals={"f": call}, num_threads=options.threads)
                            timers.append((row(measure=f"{name}_seconds"), timer))
                        else:
                            peaks[name] = call
                    rows += [row(measure=key, values=[peak]) for key, peak in peaks.items()]
            except Exception as error:
                kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
                stopped[case.name] = f"{kind}{first_line(error)}"
                print(f"{case.name}, n = {n:,}: {stopped[case.name]}", file=sys.stderr)
            if case.name in stopped:
                rows.append(row(measure=ANY, stopped=stopped[case.name]))
        for i in range(options.rounds):
            print(f"n = {n:,}: round {i + 1} of {options.rounds}", file=sys.stderr, flush=True)
            for timed, timer in timers:
                timed.values.append(timer.blocked_autorange(min_run_time=options.least).median)
        rows += [timed for timed, _ in timers]
    if not any(row.values for row in rows):
        raise UserError(f"nothing was measured: {next(iter(stopped.values()))}")
    return rows + benchmark.derive(rows)


def _measured_once(case: BenchCase, n: int, options: Namespace) -> tuple[dict[str, float], Calls]:
    """Peak bytes of a case's calls, and the calls; UserError where they break a limit."""
    measure = partial(costs_of, case, n, options.device)
    if options.device == "cpu":
        costs = run_alone(measure, mib=options.mib, threads=options.threads)
    else:
        costs = measure()
    if max(seconds for seconds, _ in costs.values()) > options.seconds:
        raise UserError(f"> {options.seconds:g} s")
    peaks = {f"{name}_bytes": peak for name, (_, peak) in costs.items()}
    if max(peaks.values()) > options.mib * 2**20:
        raise UserError(f"> {options.mib:,.0f} MiB")
    return peaks, case.build(n, torch.device(options.device))


def costs_of(case: BenchCase, n: int, device: str) -> dict[str, tuple[float, float]]:
    """Measure seconds and peak bytes of the second call of each: the first loads and compiles."""
    costs = {}
    for name, call in case.build(n, torch.device(device)).items():
        if callable(call):
            call()
            gc.collect()
            before, _ = _memory(device, forget_peak=True)
            start = time.perf_counter()
            call()
            _, peak = _memory(device)
            costs[name] = (time.perf_counter() - start, peak - before)
    return costs


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
    return _kernel_bytes("VmRSS"), _kernel_bytes("VmHWM")


def _kernel_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def run_alone(function: Callable[..., Any], *arguments: Any, mib: float, threads: int) -> Any:
    """Call the function in a new process, in which allocations beyond `mib` MiB fail."""
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "luna"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(_limited, function, arguments, mib, threads).result()
        except BrokenProcessPool as error:
            raise UserError("killed") from error
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and "memory" not in str(error).lower():
                raise
            raise UserError(f"> {mib:,.0f} MiB") from error


def _limited(function: Callable[..., Any], arguments: Any, mib: float, threads: int) -> Any:
    torch.set_num_threads(threads)
    # The driver of a GPU reserves addresses without using them, so that no limit is possible.
    if mib < math.inf and sys.platform == "linux" and not torch.cuda.is_available():
        limit = _kernel_bytes("VmData") + int(mib * 2**20)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
    return function(*arguments)
