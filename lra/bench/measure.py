"""The time of all cases in interleaved rounds, and their peak memory.

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
from collections.abc import Callable, Mapping, Sequence
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

LEAST = 0.2  # seconds of calls per case and round
# What is done with something that was built; a number is only recorded.
Calls = dict[str, Callable[[], object] | float]
Build = Callable[[int, torch.device], Calls]  # at a length; sent to other processes


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
    fails, or where a call takes more than options.seconds or options.mib."""
    rows: list[BenchRow] = []
    stopped: dict[str, str] = {}
    for n in sorted(options.lengths):
        timers: list[tuple[BenchRow, Timer]] = []
        for case, build in benchmark.cases.items():
            row = partial(BenchRow, group=options.what, case=case, n=n)
            try:
                if case not in stopped:
                    numbers = _numbers_of(build, n, options)
                    rows += [row(measure=name, values=[value]) for name, value in numbers.items()]
                    calls = build(n, torch.device(options.device))
                    timers += [
                        (row(measure=f"{name}_seconds"),
                         Timer("f()", globals={"f": call}, num_threads=options.threads))
                        for name, call in calls.items() if callable(call)
                    ]  # fmt: skip
            except Exception as error:
                kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
                stopped[case] = f"{kind}{first_line(error)}"
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


def _numbers_of(build: Build, n: int, options: Namespace) -> dict[str, float]:
    measure = partial(peaks_of, build, n, options.device, options.seconds, options.mib)
    alone = options.device == "cpu"
    return run_alone(measure, mib=options.mib, threads=options.threads) if alone else measure()


def peaks_of(build: Build, n: int, device: str, seconds: float, mib: float) -> dict[str, float]:
    """Measure peak bytes of the second call of each, as the first loads and compiles; return what
    is only recorded too. UserError where a call breaks a limit."""
    numbers = {}
    for name, call in build(n, torch.device(device)).items():
        if not callable(call):
            numbers[name] = call
            continue
        call()
        gc.collect()
        before, _ = _memory(device, forget_peak=True)
        start = time.perf_counter()
        call()
        numbers[f"{name}_bytes"] = peak = _memory(device)[1] - before
        if time.perf_counter() - start > seconds:
            raise UserError(f"> {seconds:g} s")
        if peak > mib * 2**20:
            raise UserError(f"> {mib:,.0f} MiB")
    return numbers


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
    return _kernel_kib("status", "VmRSS") * 2**10, _kernel_kib("status", "VmHWM") * 2**10


def _kernel_kib(file: str, key: str) -> int:
    lines = Path("/proc/self", file).read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))


def free_mib() -> float:
    """Memory that new processes can take; unlimited where the kernel does not say."""
    return (
        _kernel_kib("../meminfo", "MemAvailable") / 2**10 if sys.platform == "linux" else math.inf
    )


def run_alone(function: Callable[..., Any], *arguments: Any, mib: float, threads: int) -> Any:
    """Call the function in a new process, in which allocations beyond `mib` MiB fail."""
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "luna"])
    with ProcessPoolExecutor(1, context) as pool:
        try:
            return pool.submit(_limited, function, arguments, mib, threads).result()
        except BrokenProcessPool as error:
            raise UserError("killed") from error
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and "memory" not in str(error).lower():
                raise
            raise UserError(f"> {mib:,.0f} MiB") from error


def _limited(function: Callable[..., Any], arguments: Any, mib: float, threads: int) -> Any:
    """Call the function. It was imported before there is a limit: OpenBLAS hangs if it is loaded
    without memory."""
    torch.set_num_threads(threads)
    # The driver of a GPU reserves addresses without using them, so that no limit is possible.
    if mib < math.inf and sys.platform == "linux" and not torch.cuda.is_available():
        limit = (_kernel_kib("status", "VmData") + int(mib * 2**10)) * 2**10
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
    return function(*arguments)
