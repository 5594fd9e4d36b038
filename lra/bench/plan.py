"""`lra plan`: what a run or a sweep will cost, from the first steps of every distinct run."""

from __future__ import annotations

import copy
import itertools
import math
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lra import data
from lra.base.config import Loggers, UserError, first_line
from lra.bench.measure import run_alone
from lra.bench.train import random_batch
from lra.compute.gate import check_budget
from lra.data.arrays import Prepared
from lra.data.loader import Batch, Loader
from lra.data.parallel import cores
from lra.data.prepare import find_prepared
from lra.runs.environment import peak_memory_mib
from lra.runs.folder import RunFolder, processes
from lra.runs.folder import find as find_run
from lra.settings.compose import Run, check_settings, compose, initialised
from lra.sweeps.status import jobs
from lra.training.callbacks import Checkpoints
from lra.training.fit import build, trainer_for

# Settings of the recipe that do not decide what a run costs.
FREE = ("lr", "betas", "eps", "weight_decay", "warmup", "schedule", "clip_at")
BUDGETS = [round(n * 10**p, 5) for p in range(-5, -1) for n in range(10, 100)] + [1.0]
LONGEST = timedelta(seconds=30)  # of a warm-up with at least three steps
EVALUATED = 3  # batches, the first of which warms up


@dataclass
class RunGroup:
    """Runs of a sweep that cost the same."""

    words: list[str]  # of the first
    run: Run
    sizes: dict[str, int]  # examples of val and test; empty where the data are not prepared
    shared: set[str]  # words that all of them have
    name: str = ""
    runs: int = 0
    left: int = 0  # those that are not finished
    costs: dict[str, float] = field(default_factory=dict)  # as measured by first_steps
    stopped: str = ""  # why there are none

    def hours(self, pace: str = "mean", share: float = 1.0) -> float:
        """Extrapolate to one run, or to this share of its steps; the pace is mean, low or high."""
        recipe, evaluation = self.run.protocol.recipe, self.run.protocol.evaluation
        val, test = (math.ceil(self.sizes.get(s, 0) / recipe.batch) for s in ("val", "test"))
        dev = evaluation.dev_batches if evaluation.dev_batches > 0 and val else val
        steps, evaluated = recipe.steps, recipe.steps // evaluation.every * dev
        if first := self.run.pretrain.recipe:  # a single text costs half as much as a pair
            texts = 2 if data.of(self.run.task).dual else 1
            steps += math.ceil(first.steps * first.batch / recipe.batch / texts)
        seconds = self.costs["start"] + share * steps * self.costs[pace]
        # The test set is evaluated with the last checkpoint and the best.
        return (seconds + (share * evaluated + 2 * test) * self.costs["evaluation"]) / 3600


def groups_of(words: Sequence[str], *, multirun: bool) -> tuple[list[RunGroup], Any]:
    """Put the runs of `lra train <words>` into groups; returns the launcher's settings too."""
    import hydra

    groups: dict[str, RunGroup] = {}
    with initialised():
        for job in jobs(words, multirun=multirun):
            run = check_settings(hydra.compose("train", job))
            splits = prepared.facts["splits"] if (prepared := prepared_of(run)) else {}
            sizes = {split: splits[split]["examples"] for split in ("val", "test") if splits}
            group = groups.setdefault(cost_key(run), RunGroup(job, run, sizes, set(job)))
            folder = find_run(run)
            group.shared &= set(job)
            group.runs += 1
            group.left += run.rerun or folder is None or folder.result() is None
        if not groups:
            raise UserError("this sweep has no jobs: does a glob match nothing?")
        launcher = hydra.compose("train", job, return_hydra_config=True).hydra.launcher
    common = set.intersection(*(group.shared for group in groups.values()))
    for group in groups.values():
        differing = [word for word in group.words if word in group.shared - common]
        default = f"{group.run.task.name} {group.run.attention['name']}"
        group.name = " ".join(differing) or default
    return [*groups.values()], launcher


def cost_key(run: Run) -> str:
    """Name everything that can decide what a run costs."""
    run = replace(copy.deepcopy(run), seed=0)
    for name in FREE:
        setattr(run.protocol.recipe, name, None)
    return repr(run)


def prepared_of(run: Run) -> Prepared | None:
    length = run.protocol.data.max_length
    return find_prepared(run.task, max_length=length, data_dir=run.data_dir)


def jobs_at_once(launcher: Any, runs: int) -> tuple[int, int]:
    """How many jobs a launcher does at once, and how many of them share a machine or a GPU. Of
    Ray's GPUs one is known for certain."""
    target = launcher.get("_target_", "")
    packed = max(1, int(1 / (launcher.get("remote", {}).get("num_gpus") or 1)))
    number = launcher.get("n_jobs") or launcher.get("array_parallelism") or packed
    number = runs if target.endswith("LocalLauncher") else cores() if number == -1 else number
    elsewhere = target.endswith(("SlurmLauncher", "RayLauncher"))
    return min(runs, number), min(runs, packed if elsewhere else number)


# ---------------------------------------------------------------------- the measurement


class Stopwatch(pl.Callback):
    """Notes when each batch ends."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        if trainer.strategy.root_device.type == "cuda":
            torch.cuda.synchronize(trainer.strategy.root_device)
        self.ends.append(time.perf_counter())

    on_validation_batch_end = on_train_batch_end


def first_steps(words: list[str], steps: int) -> dict[str, float]:
    """Train some steps of a run and evaluate some batches by the trainer of real runs."""
    began, run, watch = time.perf_counter(), check_budget(compose(words)).run, Stopwatch()
    train, dev = _batches(run, steps + 1)
    warnings.filterwarnings("ignore", "You defined a `validation_step` but have no")
    # Several devices are measured as one, with its share of the batch.
    trainer = replace(run.trainer, progress="off", devices=1, num_nodes=1, strategy="auto")
    with tempfile.TemporaryDirectory() as runs_dir:
        run = replace(run, trainer=trainer, logger=Loggers(), runs_dir=runs_dir)
        folder, module = RunFolder(run, ""), build(run)
        folder.path.mkdir(parents=True)
        every = run.trainer.checkpoint_every
        saved = Checkpoints(folder, every=every, evaluate_every=steps + 2, select_after=0)
        lightning = trainer_for(run, folder, saved, watch, max_steps=steps + 1, min_steps=4,
                                max_time=LONGEST, val_check_interval=None)  # fmt: skip
        lightning.fit(module, train)
        trained, watch.ends = watch.ends, []
        lightning.validate(module, dev, verbose=False)
        disk = folder.last.stat().st_size + folder.best.stat().st_size
    laps, evaluations = ([b - a for a, b in itertools.pairwise(ends)]
                         for ends in (trained, watch.ends))  # fmt: skip
    mean, tenths = statistics.mean(laps), statistics.quantiles(laps, n=10, method="inclusive")
    device = lightning.strategy.root_device
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return {
        "mean": mean,  # seconds of a step; eight in ten lie between low and high
        "low": min(tenths[0], mean),
        "high": max(tenths[-1], mean),
        "start": trained[0] - began,
        "evaluation": statistics.mean(evaluations),
        "disk": disk / 2**20,
        "peak": peak_memory_mib(device),
        "room": gpu.total_memory / 2**20 if gpu else free_mib(),
        "share": 1.0 if gpu else torch.get_num_threads() / cores(),  # of the machine
    }


def _batches(run: Run, steps: int) -> tuple[Any, Any]:
    """Loaders of training and dev batches; made-up ids of full length where nothing is prepared."""
    size, world, prepared = run.protocol.recipe.batch, processes(run), prepared_of(run)
    if prepared is None:
        (ids, mask, labels), share = random_batch(run, torch.device("cpu")), slice(size // world)
        batch = Batch(ids[share], None if mask is None else mask[share], labels[share])
        return itertools.repeat(batch), itertools.repeat(batch, EVALUATED)
    rules: dict[str, Any] = {"rules": run.protocol.data, "seed": run.seed, "world": world}
    return (
        Loader(prepared.split("train"), size, steps=steps, **rules),
        Loader(prepared.split("val"), size, limit=EVALUATED, **rules),
    )


def free_mib() -> float:
    """Memory that new processes can take; unlimited where the kernel does not say."""
    path = Path("/proc/meminfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return next((int(x.split()[1]) / 2**10 for x in lines if "MemAvailable" in x), math.inf)


# ---------------------------------------------------------------------- the plan


@dataclass
class Plan:
    """Measured groups, `number` runs at once, `beside` of them on one machine or GPU."""

    groups: list[RunGroup]
    number: int
    beside: int

    def hours(self, pace: str, budget: float | None = None) -> float:
        """Hours of what is left, or of all runs with another budget. Runs beside each other take
        as much longer as they ask for more than the machine has."""
        crowd = max(1.0, self.beside * max(group.costs["share"] for group in self.groups))
        each = [
            group.hours(pace, 1.0 if budget is None else budget / group.run.budget)
            for group in self.groups
            for _ in range(group.left if budget is None else group.runs)
        ]
        return max(*each, sum(each) / self.number, 0) * (1 if pace == "low" else crowd)

    def span(self, budget: float | None = None) -> str:
        mean, low, high = (_digits(self.hours(p, budget)) for p in ("mean", "low", "high"))
        return f"{mean} hours ({low} to {high})"

    def proposal(self, hours: float) -> str:
        """Name the largest budget whose runs all end within these hours, even at the slow pace."""
        fitting = [budget for budget in BUDGETS if self.hours("high", budget) <= hours]
        took = f"budget={max(fitting, default=BUDGETS[0]):g}: "
        took += f"{self.span(max(fitting, default=BUDGETS[0]))} for all runs"
        return took if fitting else f"no budget fits into {hours:g} hours; the smallest is {took}"

    def lines(self) -> list[str]:
        """Totals, and what does not fit."""
        each = [group.costs for group in self.groups for _ in range(group.left)]
        runs_dir = Path(self.groups[0].run.runs_dir).absolute()
        free = shutil.disk_usage(next(p for p in runs_dir.parents if p.exists())).free / 2**20
        peaks = sorted((costs["peak"] for costs in each), reverse=True)
        room = self.groups[0].costs["room"]
        return [
            f"{self.span()} for {len(each)} runs, {self.number} at once: eight in ten steps lie in "
            "this range, measured here and alone",
            _fits("disk for checkpoints", sum(costs["disk"] for costs in each), free),
            _fits("memory at once", sum(peaks[: self.beside]), room),
        ]


def _fits(what: str, needed: float, free: float) -> str:
    full = "; they DO NOT FIT" if needed > free else ""
    return f"{what}: up to {needed:,.0f} MiB, {free:,.0f} MiB are free{full}"


def show_plan(options: Namespace) -> None:
    """Measure, and print the table and the totals."""
    groups, launcher = groups_of(options.overrides, multirun=options.multirun)
    runs, left = sum(g.runs for g in groups), sum(g.left for g in groups)
    if left < runs:
        print(f"{runs - left} of {runs} runs are finished and cost nothing")
    groups = [group for group in groups if group.left or options.hours]
    for i, group in enumerate(groups, 1):
        print(f"measuring {i}/{len(groups)}: {group.name}", file=sys.stderr, flush=True)
        threads = group.run.trainer.threads or torch.get_num_threads()
        try:
            group.costs = run_alone(
                first_steps, group.words, options.steps, mib=free_mib(), threads=threads
            )
        except Exception as error:
            group.stopped = first_line(error)
    measured = [group for group in groups if group.costs]
    if not measured and groups:
        raise UserError(f"nothing could be measured: {groups[0].stopped}")
    if not measured:
        return
    Console(highlight=False).print(_table(groups))
    number, beside = jobs_at_once(launcher, left or runs)
    plan = Plan(measured, options.jobs or number, min(beside, options.jobs or beside))
    if left:
        print("\n".join(plan.lines()))
    if made_up := sorted({g.run.task.name for g in measured if not g.sizes}):
        print(f"not prepared, so made-up ids and no evaluation: {', '.join(made_up)}")
    if options.hours:
        print(plan.proposal(options.hours))


def _table(groups: Sequence[RunGroup]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("runs like", min_width=min(40, max(len(group.name) for group in groups)))
    for head in ("runs", "steps", "s/step", "hours per run", "hours", "peak MiB"):
        table.add_column(head, justify="right")
    for group in groups:
        cells = [group.name, f"{group.left}", f"{group.run.protocol.recipe.steps:,}", group.stopped]
        if costs := group.costs:
            hours = _digits(group.hours()), _digits(group.left * group.hours())
            cells[3:] = [f"{costs['mean']:.3g}", *hours, f"{costs['peak']:,.0f}"]
        table.add_row(*map(escape, cells))
    return table


def _digits(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.2g}"
