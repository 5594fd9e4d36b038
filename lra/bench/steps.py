"""The first steps of a run, measured as its trainer does them: what `lra plan` extrapolates."""

from __future__ import annotations

import contextlib
import math
import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from lra.base.config import Loggers, UserError
from lra.bench.cases import random_batch
from lra.bench.train import Stopwatch, rehearsal
from lra.bench.worker import BenchCase, BenchMeter
from lra.compute.gate import check_budget
from lra.data.arrays import Prepared
from lra.data.loader import Batch, Loader
from lra.data.parallel import cores
from lra.data.prepare import find_prepared
from lra.runs.environment import peak_memory_mib
from lra.runs.folder import processes
from lra.settings.compose import Run, compose

MOST_STEPS, LEAST_SECONDS, MOST_SECONDS = 10_000, 1.0, 30.0  # of one measurement
EVALUATED = 3  # batches, the first of which warms up


class PacedStopwatch(Stopwatch):
    """Ends training after enough steps and seconds behind the first step, which warms up."""

    def __init__(self, steps: int):
        super().__init__()
        self.steps = steps

    def on_train_batch_end(self, trainer: Any, *rest: Any, **more: Any) -> None:
        self.tick(trainer)
        timed = len(self.ticks) - 2
        if timed >= 2:
            seconds = self.ticks[-1] - self.ticks[1]
            enough = timed >= self.steps and seconds >= LEAST_SECONDS
            trainer.should_stop = enough or seconds >= MOST_SECONDS


@dataclass(frozen=True, kw_only=True)
class FirstSteps(BenchCase):
    """The first steps of a run and some batches evaluated, by the trainer of real runs."""

    warm_up: ClassVar[bool] = False

    words: Sequence[str]  # as for lra train
    steps: int

    def costs(self, n: int, meter: BenchMeter) -> dict[str, float]:
        began, free = time.perf_counter(), free_mib()
        run = check_budget(compose(self.words)).run
        train, dev = _batches(run)
        # Several devices are measured as one, with its share of the batch.
        trainer = replace(run.trainer, progress="off", devices=1, num_nodes=1, strategy="auto")
        run = replace(run, trainer=trainer, logger=Loggers())
        try:
            with _memory_limit(free):
                return self._costs(run, train, dev, began, free)
        except (RuntimeError, MemoryError) as error:
            if "memory" not in str(error).lower():
                raise
            raise UserError("needs more memory than is free") from error

    def _costs(self, run: Run, train: Any, dev: Any, began: float, free: float) -> dict[str, float]:
        watch = PacedStopwatch(self.steps)
        with rehearsal(run, "", watch, steps=MOST_STEPS) as (trainer, module, folder):
            trainer.fit(module, train)
            start = watch.ticks[1] - began
            steps = watch.laps()[1:]
            trainer.validate(module, dev, verbose=False)
            evaluations, device = watch.laps()[1:], trainer.strategy.root_device
            disk = folder.last.stat().st_size + folder.best.stat().st_size
        share = torch.get_num_threads() / cores()
        if device.type == "cuda":
            free = torch.cuda.get_device_properties(device).total_memory / 2**20
            share = 1.0  # all take the first GPU that they see
        mean = statistics.mean(steps)
        tenths = statistics.quantiles(steps, n=10, method="inclusive")
        return {
            "mean": mean,  # seconds of a step
            "low": min(tenths[0], mean),
            "high": max(tenths[-1], mean),
            "start": start,
            "evaluation": statistics.mean(evaluations),
            "peak_mib": peak_memory_mib(device),
            "room_mib": free,
            "disk": disk,
            "share": share,  # of the machine, that a run keeps busy
        }


def prepared_of(run: Run) -> Prepared | None:
    length = run.protocol.data.max_length
    return find_prepared(run.task, max_length=length, data_dir=run.data_dir)


def _batches(run: Run) -> tuple[Any, Any]:
    """Loaders of training and dev batches; made-up ids of full length where nothing is prepared."""
    size, world, prepared = run.protocol.recipe.batch, processes(run), prepared_of(run)
    if prepared is None:
        parts, share = random_batch(run, torch.device("cpu")), size // world
        ids, mask, labels = (None if part is None else part[:share] for part in parts)
        batch = Batch(cast(Tensor, ids), mask, cast(Tensor, labels))
        return repeat(batch), repeat(batch, EVALUATED)
    rules: dict[str, Any] = {"rules": run.protocol.data, "seed": run.seed, "world": world}
    return (
        Loader(prepared.split("train"), size, steps=MOST_STEPS, **rules),
        Loader(prepared.split("val"), size, limit=EVALUATED, **rules),
    )


def free_mib() -> float:
    """Memory that new processes can take; unlimited where the kernel does not say."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return int(next(line for line in lines if "MemAvailable" in line).split()[1]) / 2**10
    return math.inf


@contextlib.contextmanager
def _memory_limit(mib: float) -> Iterator[None]:
    """Inside the block, an allocation beyond this fails, before the kernel kills some process. On a
    GPU, whose driver reserves addresses without using them, there is no limit."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limited = mib < math.inf and not torch.cuda.is_available()
    if limited and before[1] == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_DATA, (int(mib * 2**20), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
