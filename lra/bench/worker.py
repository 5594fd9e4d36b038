"""A case, the rules by which it is measured, and the process that measures it."""

from __future__ import annotations

import gc
import math
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import torch
from torch.profiler import ProfilerActivity, profile

from lra.base.config import first_line
from lra.bench.rows import ANY, BenchRow

Call = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class BenchRules:
    """How the cases of a benchmark are measured."""

    rounds: int  # over all cases
    threads: int  # of torch, on a CPU
    device: str = "cpu"
    seconds: float = math.inf  # a case stops before a length where one call would take longer
    mib: float = math.inf  # or need more memory
    timeout: float = math.inf  # seconds for one process
    calls: int = 2  # a call is timed at least this often per round
    least: float = 0.1  # and for at least this many seconds
    dear: float = 1.0  # if the first call takes longer, it is timed and no other one is made
    summary: Callable[[Sequence[float]], float] = min  # of the times of one round

    @classmethod
    def of(cls, options: Namespace, **more: Any) -> BenchRules:
        """The rules that the command line and `more` set."""
        names = {rule.name for rule in fields(cls)}
        return cls(**{key: value for key, value in vars(options).items() if key in names} | more)


@dataclass(frozen=True, kw_only=True)
class BenchCase:
    """One thing to measure: it builds it at a length, and calls it.

    Cases are sent to the process that measures them, so their fields must be picklable.
    """

    warm_up: ClassVar[bool] = True  # whether the first measurement of a process is left out

    group: str  # cases of a group are compared, and measured in turn in one process
    name: str
    lengths: Sequence[int] = (0,)  # 0 for a case without a length
    alone: bool = False  # whether the case has its own process instead
    facts: dict[str, Any] = field(default_factory=dict)  # known before measuring; in the file

    def flops(self, n: int) -> int | None:
        """FLOPs of a forward pass, from which costs at the next length are estimated."""
        return None

    def costs(self, n: int, meter: BenchMeter) -> dict[str, float]:
        """Build the case at this length and measure it. The first cost is the time that
        BenchRules.seconds limits."""
        raise NotImplementedError


class BenchMeter:
    """Measures time and peak memory of calls."""

    def __init__(self, rules: BenchRules, *, memory: bool = True):
        self.rules = rules
        self.memory = memory
        self.device = torch.device(rules.device)

    def seconds(self, calls: Mapping[str, Call]) -> dict[str, float]:
        """Seconds of every call, made in turn. The first time of each is left out, as it includes
        freeing what the call before left in memory, unless a second time would take too long."""
        first = {key: self._once(call) for key, call in calls.items()}
        if sum(first.values()) > self.rules.dear:
            return first
        repeats = max(self.rules.calls, round(self.rules.least / min(first.values())))
        times = [{key: self._once(call) for key, call in calls.items()} for _ in range(repeats)]
        return {key: self.rules.summary([time[key] for time in times]) for key in calls}

    def _once(self, call: Call) -> float:
        start = time.perf_counter()
        call()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - start

    def peak_bytes(self, call: Call) -> dict[str, float]:
        """Peak memory minus memory before the call: activations, buffers of operations, gradients
        of inputs and parameters."""
        if not self.memory:
            return {}
        if self.device.type == "cuda":
            before = torch.cuda.memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            call()
            return {"peak_bytes": torch.cuda.max_memory_allocated(self.device) - before}
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler prints every start and stop
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
            call()
        events = [e for e in trace.profiler.kineto_results.events() if e.name() == "[memory]"]
        events.sort(key=lambda event: event.start_ns())
        return {"peak_bytes": max(accumulate(event.nbytes() for event in events))}


def measure(cases: Sequence[BenchCase], meter: BenchMeter) -> Iterator[BenchRow]:
    """Rows of all cases at one length, then of all at the next, so that both sides of a ratio are
    measured within seconds. A case stops where it fails, and before a length whose cost, estimated
    from its last one by FLOPs, would break a limit."""
    last: dict[str, dict[str, float]] = {}  # costs at the longest length so far, by case
    stopped: dict[str, str] = {}
    for n in sorted({n for case in cases for n in case.lengths}):
        for case in (case for case in cases if n in case.lengths):
            flops = case.flops(n)
            costs: dict[str, float] = {}
            reason = stopped.get(case.name) or _excess(flops, last.get(case.name), meter.rules)
            if not reason:
                try:
                    costs = _costs(case, n, meter, first=case.name not in last)
                except Exception as error:
                    reason = f"{type(error).__name__}: {first_line(error)}"
                    print(f"{case.name}: {reason}", file=sys.stderr)
            costs |= {"flops": flops} if flops else {}
            if reason:
                stopped[case.name] = reason
            else:
                last[case.name] = costs
            yield from rows_of(case, n, costs, reason)


def _costs(case: BenchCase, n: int, meter: BenchMeter, *, first: bool) -> dict[str, float]:
    gc.collect()  # earlier models that are freed during a call would lower its memory
    if first and case.warm_up:
        case.costs(n, BenchMeter(meter.rules, memory=False))  # loads and compiles once
        gc.collect()
    return case.costs(n, meter)


def _excess(flops: int | None, last: dict[str, float] | None, rules: BenchRules) -> str | None:
    """The limit that a length with these FLOPs would break."""
    if not last or not flops:
        return None
    growth = flops / last["flops"]
    if growth * next(iter(last.values())) > rules.seconds:
        return f"> {rules.seconds:g} s"
    if growth * last.get("peak_bytes", 0.0) > rules.mib * 2**20:
        return f"> {rules.mib:g} MiB"
    return None


def rows_of(
    case: BenchCase, n: int, costs: Mapping[str, float], stopped: str | None
) -> Iterator[BenchRow]:
    who: dict[str, Any] = {"group": case.group, "case": case.name, "n": n}
    for measure, value in costs.items():
        yield BenchRow(**who, measure=measure, values=[value])
    if stopped:
        yield BenchRow(**who, measure=ANY, stopped=stopped)


def work(rows: Connection, cases: Sequence[BenchCase], meter: BenchMeter) -> None:
    """The main function of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process answers Ctrl-C
    if meter.device.type == "cpu":
        torch.set_num_threads(meter.rules.threads)
    for row in measure(cases, meter):
        rows.send(row)
