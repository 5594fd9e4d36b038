"""`lra bench train`: the time that the framework adds to the mathematics of training.

Four measurements: the framework compared with a bare loop of the same network, optimiser and
batches; loading the data; a step compared with what the device can do; and the time from the shell
to the first step.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch

from lra.base.config import UserError
from lra.bench import roofline
from lra.bench.cases import TrainingStep
from lra.bench.rows import BenchResult, ratio_by_round
from lra.bench.sheet import Benchmark, SheetTable, rounds_of, with_range
from lra.bench.worker import BenchCase, BenchMeter, BenchRules
from lra.compute.count import count_run
from lra.data.arrays import Prepared
from lra.data.device import DeviceLoader, fits
from lra.data.loader import Batch, Loader
from lra.data.prepare import find_or_prepare
from lra.runs.folder import RunFolder
from lra.settings.compose import Run, compose
from lra.sweeps.sweep import child_environment
from lra.training.callbacks import Checkpoints
from lra.training.fit import build, trainer_for
from lra.training.module import LRAModule
from lra.training.trained import DTYPES

BARE, FRAMEWORK, LOADING = "bare loop", "framework", "data loading"
START = "start to first step"
PARTS = ("forward", "backward", "optimiser")  # of TrainingStep


def benchmark(options: Namespace) -> Benchmark:
    words = [*options.overrides, "trainer.progress=off"]
    run, _ = _prepared(tuple(words))
    loops = [
        LoopCase(group="training", name=name, words=words, steps=options.steps) for name in LOOPS
    ]
    parts = PartsCase(group="parts", name=BARE, words=words, steps=options.steps)
    batch = run.protocol.recipe.batch
    facts = {"step_flops": roofline.step_flops(count_run(run), batch)}
    device = DeviceCase(
        group="device", name=FRAMEWORK, words=words, steps=options.steps, facts=facts
    )
    task, attention = run.task.name, run.attention["name"]
    return Benchmark(
        stem=f"train-{task}-{attention}",
        title=f"What the framework adds to training: {task}, {attention}",
        notes=[
            f"batch {batch}, {options.steps} steps per round behind one that warms up; median over "
            "rounds (least .. largest), ratios taken within a round",
            "bare loop: the same network, optimiser, clipping and batches without the framework, "
            "in float32, not compiled; framework: trainer, module, callbacks and loader of a real "
            "run, without evaluation",
            *roofline.NOTES,
        ],
        cases=[
            *loops,
            parts,
            device,
            StartCase(group="start", name=START, words=options.overrides),
        ],
        rules=BenchRules.of(
            options,
            threads=run.trainer.threads or torch.get_num_threads(),
            device=_device(run.trainer.accelerator),
        ),
    )


# ---------------------------------------------------------------------- cases


@dataclass(frozen=True, kw_only=True)
class LoopCase(BenchCase):
    """Seconds per step of one of LOOPS, all over the same batches."""

    words: Sequence[str]  # as for lra train
    steps: int

    def costs(self, n: int, meter: BenchMeter) -> dict[str, float]:
        run, prepared = _prepared(tuple(self.words))
        loader = _loader(run, prepared, meter.device, self.steps)
        return {"seconds": LOOPS[self.name](run, prepared.fingerprint, loader) / self.steps}


@dataclass(frozen=True, kw_only=True)
class PartsCase(BenchCase):
    """Seconds of each part of a step of the bare loop, which waits for the device in between."""

    words: Sequence[str]
    steps: int

    def costs(self, n: int, meter: BenchMeter) -> dict[str, float]:
        run, prepared = _prepared(tuple(self.words))
        loader = _loader(run, prepared, meter.device, self.steps)
        step, seconds = TrainingStep(run, meter.device), dict.fromkeys(PARTS, 0.0)
        for i, batch in enumerate(loader):
            there = _sent(batch, meter.device)
            began = _now(meter.device)
            for part in step.parts(*there):
                ended = _now(meter.device)
                seconds[part] += (ended - began) * (i > 0)  # the first step warms up
                began = ended
        return {f"{part}_seconds": total / self.steps for part, total in seconds.items()}


@dataclass(frozen=True, kw_only=True)
class DeviceCase(BenchCase):
    """Seconds of a step of the framework, those in which the device works, and the least that its
    products and the bytes it moves would take."""

    warm_up: ClassVar[bool] = False

    words: Sequence[str]
    steps: int

    def costs(self, n: int, meter: BenchMeter) -> dict[str, float]:
        run, prepared = _prepared(tuple(self.words))
        loader = _loader(run, prepared, meter.device, self.steps)
        on_gpu = meter.device.type == "cuda"
        # A profiler makes steps slower, so on a GPU they are timed without one.
        watches = [roofline.StepWatch(self.steps, profiled=p) for p in (False, True)[: 1 + on_gpu]]
        for watch in watches:
            training = rehearsal(run, prepared.fingerprint, watch, steps=len(loader))
            with training as (trainer, module, _):
                trainer.fit(module, loader)
        dtype = DTYPES.get(run.trainer.precision.partition("-")[0], torch.float32)
        product = roofline.product_rate(meter, dtype)  # TF32 as the trainer has set it
        copy = roofline.copy_rate(meter, roofline.COPIED)
        return {
            "seconds": watches[0].seconds() / self.steps,
            "busy_seconds": watches[-1].busy_seconds() / self.steps,
            "product_seconds": self.facts["step_flops"] / product,
            "copy_seconds": watches[0].least_bytes / copy,
            "product_rate": product,
            "copy_rate": copy,
        }


def _loader(run: Run, prepared: Prepared, device: torch.device, steps: int) -> Loader:
    """The batches of these steps and of one that warms up, held on a GPU as a run does it."""
    split = prepared.split("train")
    kind = partial(DeviceLoader, device=device) if fits(split, device) else Loader
    batch, rules = run.protocol.recipe.batch, run.protocol.data
    return kind(split, batch, rules=rules, seed=run.seed, steps=steps + 1)


def _sent(batch: Batch, device: torch.device) -> Batch:
    ids, mask, labels = batch
    return Batch(ids.to(device), None if mask is None else mask.to(device), labels.to(device))


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@cache
def _prepared(words: tuple[str, ...]) -> tuple[Run, Prepared]:
    run = compose(words)
    length = run.protocol.data.max_length
    return run, find_or_prepare(run.task, max_length=length, data_dir=run.data_dir)


def _device(accelerator: str) -> str:
    return "cuda" if accelerator != "cpu" and torch.cuda.is_available() else "cpu"


def _bare(run: Run, fingerprint: str, loader: Loader) -> float:
    device = torch.device(_device(run.trainer.accelerator))
    step, (first, *others) = TrainingStep(run, device), list(loader)
    step(*_sent(first, device))
    start = _now(device)
    for batch in others:
        step(*_sent(batch, device))
    return _now(device) - start


class Stopwatch(pl.Callback):
    """Notes when training or an evaluation begins, and when each of its batches ends."""

    def __init__(self) -> None:
        self.ticks: list[float] = []

    def tick(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        if trainer.strategy.root_device.type == "cuda":
            torch.cuda.synchronize(trainer.strategy.root_device)
        self.ticks.append(time.perf_counter())

    on_train_start = on_train_batch_end = on_validation_start = on_validation_batch_end = tick

    def laps(self) -> list[float]:
        """The seconds of each batch since this was last called."""
        laps = [end - start for start, end in pairwise(self.ticks)]
        self.ticks = []
        return laps


@contextlib.contextmanager
def rehearsal(
    run: Run, fingerprint: str, *callbacks: pl.Callback, steps: int
) -> Iterator[tuple[pl.Trainer, LRAModule, RunFolder]]:
    """Trainer, module and folder of a real run, whose folder is removed at the end. Training is not
    interrupted by evaluations."""
    with tempfile.TemporaryDirectory() as runs, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You defined a `validation_step` but have no")
        run = replace(run, runs_dir=runs)
        folder = RunFolder(run, fingerprint)
        folder.path.mkdir(parents=True)
        checkpoints = Checkpoints(
            folder, every=run.trainer.checkpoint_every, evaluate_every=steps + 1, select_after=0
        )
        changes: dict[str, Any] = {"max_steps": steps, "val_check_interval": None}
        yield trainer_for(run, folder, checkpoints, *callbacks, **changes), build(run), folder


def _framework(run: Run, fingerprint: str, loader: Loader) -> float:
    watch = roofline.StepWatch(len(loader) - 1)
    with rehearsal(run, fingerprint, watch, steps=len(loader)) as (trainer, module, _):
        trainer.fit(module, loader)
    return watch.seconds()


def _load(run: Run, fingerprint: str, loader: Loader) -> float:
    batches = iter(loader)
    device = next(batches).ids.device
    start = _now(device)
    for _ in batches:
        pass
    return _now(device) - start


LOOPS = {BARE: _bare, FRAMEWORK: _framework, LOADING: _load}


@dataclass(frozen=True, kw_only=True)
class StartCase(BenchCase):
    """Seconds from the shell to the line that reports the first step."""

    warm_up: ClassVar[bool] = False

    words: Sequence[str]

    def costs(self, n: int, meter: BenchMeter) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as runs:
            command = [
                sys.executable, "-m", "lra", "train", *self.words, f"runs_dir={runs}",
                "compute=off", "trainer.progress=lines", "trainer.print_every=0",
            ]  # fmt: skip
            start = time.perf_counter()
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, text=True, env=child_environment()
            ) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    if line.startswith("  step"):
                        seconds = time.perf_counter() - start
                        process.kill()
                        return {"seconds": seconds}
        raise UserError(f"the run did not reach its first step: {' '.join(command)}")


# ---------------------------------------------------------------------- table


def tables(result: BenchResult) -> Iterator[SheetTable]:
    found = result.select("training", "seconds") | result.select("start", "seconds")
    rows = {case: row for case, by_n in found.items() for row in by_n.values()}
    added = [ratio - 1 for ratio in ratio_by_round(rows[FRAMEWORK], rows[BARE])]
    lines = [
        [f"step, {BARE}, ms", rounds_of(rows[BARE], ".2f", 1e3)],
        [f"step, {FRAMEWORK}, ms", rounds_of(rows[FRAMEWORK], ".2f", 1e3)],
        ["framework overhead", with_range(added, "+.1%")],
        ["data loading, share of a step",
         with_range(ratio_by_round(rows[LOADING], rows[BARE]), ".2%")],
        [f"{START}, s", rounds_of(rows[START], ".1f")],
    ]  # fmt: skip
    yield SheetTable("Training", ["", "measured"], lines)
    parts = [
        [part, rounds_of(row, ".2f", 1e3)]
        for part in PARTS
        for by_n in result.select("parts", f"{part}_seconds").values()
        for row in by_n.values()
    ]
    if parts:  # older files lack them
        yield SheetTable("Parts of a step of the bare loop, ms", ["part", "measured"], parts)
    yield from roofline.tables(result, "device", FRAMEWORK)
