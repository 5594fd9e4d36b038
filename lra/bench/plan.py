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
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from lra import data
from lra.base.config import UserError, first_line
from lra.bench.measure import free_mib, run_alone
from lra.bench.train import random_batch
from lra.compute.gate import check_budget
from lra.data.loader import Loader
from lra.data.parallel import cores
from lra.data.prepare import find_prepared
from lra.runs.environment import peak_memory_mib
from lra.runs.folder import RunFolder
from lra.runs.folder import find as find_run
from lra.settings.compose import Run, check_settings, compose, initialised
from lra.sweeps.status import jobs
from lra.training.callbacks import Checkpoints
from lra.training.run import build
from lra.training.trainer import trainer_for

# Settings of the recipe that do not decide what a run costs.
FREE = ("lr", "betas", "eps", "weight_decay", "warmup", "schedule", "clip_at")
LONGEST = {"seconds": 30}  # of a warm-up with at least three steps
EVALUATED = 3  # batches, the first of which warms up
UNITS = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}


@dataclass
class RunGroup:
    """Runs of a sweep that cost the same."""

    words: list[str]  # of the first
    run: Run
    left: int = 0  # those that are not finished
    name: str = ""
    costs: dict[str, float] = field(default_factory=dict)  # as measured by first_steps

    def seconds(self, pace: str = "mean") -> float:
        """Extrapolate to one run; the pace is mean, low or high."""
        recipe, evaluation = self.run.protocol.recipe, self.run.protocol.evaluation
        val, test = (math.ceil(self.costs[split] / recipe.batch) for split in ("val", "test"))
        dev = evaluation.dev_batches if evaluation.dev_batches > 0 and val else val
        steps = recipe.steps
        if first := self.run.pretrain.recipe:  # a single text costs half as much as a pair
            texts = 2 if data.of(self.run.task).dual else 1
            steps += math.ceil(first.steps * first.batch / recipe.batch / texts)
        # The test set is evaluated with the last checkpoint and the best.
        batches = recipe.steps // evaluation.every * dev + 2 * test
        return self.costs["start"] + steps * self.costs[pace] + batches * self.costs["evaluation"]


def groups_of(words: Sequence[str], *, multirun: bool) -> tuple[list[RunGroup], int, Any]:
    """Put the runs of `lra train <words>` into groups; also returns how many there are,
    and the launcher's settings."""
    import hydra

    groups, runs = dict[str, RunGroup](), 0
    with initialised(words):
        for job in jobs(words, multirun=multirun):
            run = check_settings(hydra.compose("train", job))
            group, folder = groups.setdefault(cost_key(run), RunGroup(job, run)), find_run(run)
            runs += 1
            group.left += run.rerun or folder is None or folder.result() is None
        if not groups:
            raise UserError("this sweep has no jobs: does a glob match nothing?")
        launcher = hydra.compose("train", job, return_hydra_config=True).hydra.launcher
    common = set.intersection(*(set(group.words) for group in groups.values()))
    for group in groups.values():
        differing = " ".join(word for word in group.words if word not in common)
        group.name = differing or f"{group.run.task.name} {group.run.attention['name']}"
    return [*groups.values()], runs, launcher


def cost_key(run: Run) -> str:
    """Name everything that can decide what a run costs."""
    run = replace(copy.deepcopy(run), seed=0)
    for name in FREE:
        setattr(run.protocol.recipe, name, None)
    return repr(run)


def jobs_at_once(launcher: Any, runs: int) -> tuple[int, int]:
    """How many jobs a launcher does at once, and how many of them share a machine or a GPU. Of
    Ray's GPUs one is known for certain."""
    target = launcher.get("_target_", "")
    packed = max(1, int(1 / (launcher.get("remote", {}).get("num_gpus") or 1)))
    number = launcher.get("n_jobs") or launcher.get("array_parallelism") or packed
    number = runs if target.endswith("LocalLauncher") else cores() if number == -1 else number
    elsewhere = target.endswith(("SlurmLauncher", "RayLauncher"))
    return min(runs, number), min(runs, packed if elsewhere else number)


class Stopwatch(pl.Callback):
    """Notes when each batch ends, and shows it by a dot."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        if trainer.strategy.root_device.type == "cuda":
            torch.cuda.synchronize(trainer.strategy.root_device)
        self.ends.append(time.perf_counter())
        print(".", end="", file=sys.stderr, flush=True)

    on_validation_batch_end = on_train_batch_end


def first_steps(words: list[str], steps: int) -> dict[str, float]:
    """Train some steps of a run and evaluate some batches by the trainer of real runs."""
    began, run, watch = time.perf_counter(), check_budget(compose(words)).run, Stopwatch()
    size, world, rules = run.protocol.recipe.batch, run.processes, run.protocol.data
    prepared = find_prepared(run.task, max_length=rules.max_length, data_dir=run.data_dir)
    if prepared is None:
        train = dev = itertools.repeat(random_batch(run, torch.device("cpu"), share=world))
    else:
        loader: Any = partial(Loader, rules=rules, seed=run.seed, world=world)
        train = loader(prepared.split("train"), size, steps=steps + 1)
        dev = loader(prepared.split("val"), size, limit=EVALUATED)
    warnings.filterwarnings("ignore", "You defined a `validation_step` but have no")
    # Several devices are measured as one, with its share of the batch.
    trainer = replace(run.trainer, progress="off", devices=1, num_nodes=1, strategy="auto")
    with tempfile.TemporaryDirectory() as runs_dir:
        run = replace(run, trainer=trainer, logger={}, runs_dir=runs_dir)
        folder, module = RunFolder(run, ""), build(run)
        folder.path.mkdir(parents=True)
        every = run.trainer.checkpoint_every
        saved = Checkpoints(folder, every=every, evaluate_every=steps + 2, select_after=0)
        lightning = trainer_for(run, folder, saved, watch, max_steps=steps + 1, min_steps=4,
                                max_time=LONGEST, val_check_interval=None,
                                limit_val_batches=EVALUATED)  # fmt: skip
        lightning.fit(module, train)
        trained, watch.ends = watch.ends, []
        lightning.validate(module, dev, verbose=False)
        disk = folder.last.stat().st_size + folder.best.stat().st_size
    laps, evaluations = ([b - a for a, b in itertools.pairwise(ends)]
                         for ends in (trained, watch.ends))  # fmt: skip
    device = lightning.strategy.root_device
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    splits = prepared.facts["splits"] if prepared else {}
    return {
        "mean": statistics.mean(laps),  # seconds of a step; the fastest, the slowest
        "low": min(laps),
        "high": max(laps),
        "start": trained[0] - began,
        "evaluation": statistics.mean(evaluations),
        **{split: splits.get(split, {}).get("examples", 0) for split in ("val", "test")},
        "disk": disk / 2**20,
        "peak": peak_memory_mib(device),
        "room": gpu.total_memory / 2**20 if gpu else free_mib(),
        "share": 1.0 if gpu else torch.get_num_threads() / cores(),  # of the machine
    }


def in_words(*times: float) -> str:
    """Write seconds as `11 minutes`, with the least and the largest as `11 minutes (9 to 14)`."""
    unit = next((unit for unit, size in UNITS.items() if times[0] >= 2 * size), "seconds")
    mean, *ends = (_digits(seconds / UNITS[unit]) for seconds in times)
    return f"{mean} {unit}" + f" ({' to '.join(ends)})" * bool(ends)


def _size(mib: float) -> str:
    return f"{_digits(mib / 2**10)} GiB" if mib >= 2**10 else f"{_digits(mib)} MiB"


def _digits(number: float) -> str:
    return f"{number:.2g}" if number < 10 else f"{number:,.0f}"


def _count(runs: int) -> str:
    return f"{runs} run{'s' * (runs != 1)}"


def show_plan(options: Namespace) -> None:
    """Measure, and print the table and the totals."""
    groups, runs, launcher = groups_of(options.overrides, multirun=options.multirun)
    left = sum(group.left for group in groups)
    if left < runs:
        print(f"{runs - left} of {_count(runs)} finished: no cost")
    groups, error = [group for group in groups if group.left], ""
    for i, group in enumerate(groups, 1):
        print(f"measuring {i} of {len(groups)}: {group.name} ", end="", file=sys.stderr, flush=True)
        threads = group.run.trainer.threads or torch.get_num_threads()
        measure = partial(run_alone, first_steps, mib=free_mib(), threads=threads)
        try:
            group.costs = measure(group.words, options.steps)
            print(f" {group.costs['mean']:.2g} s a step", file=sys.stderr)
        except Exception as reason:
            error = first_line(reason)
            print(f"not counted, because it cannot be measured: {error}", file=sys.stderr)
    if groups := [group for group in groups if group.costs]:
        number, beside = jobs_at_once(launcher, left)
        print(as_table(groups))
        print(totals(groups, options.jobs or number, min(beside, options.jobs or beside)))
    elif error:
        raise UserError(f"nothing could be measured: {error}")


def as_table(groups: Sequence[RunGroup]) -> str:
    lines = [("runs", "steps", "a step", "one run", "memory", "runs like")]
    for group in groups:
        step, memory = f"{group.costs['mean']:.2g} s", _size(group.costs["peak"])
        steps, time = f"{group.run.protocol.recipe.steps:,}", in_words(group.seconds())
        lines.append((f"{group.left}", steps, step, time, memory, group.name))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def totals(groups: Sequence[RunGroup], number: int, beside: int) -> str:
    """Write the time of all runs left, `number` at once, and what does not fit. Those `beside` each
    other on a machine or GPU take as much longer as they ask for more than it has."""
    each = [group.costs for group in groups for _ in range(group.left)]
    crowd, times = max(1.0, beside * max(costs["share"] for costs in each)), []
    for pace, slower in (("mean", crowd), ("low", 1.0), ("high", crowd)):
        alone = [group.seconds(pace) for group in groups for _ in range(group.left)]
        times.append(slower * max(*alone, sum(alone) / number, 0))
    lines = [
        f"{in_words(*times)} for {_count(len(each))}, {number} at once",
        "in brackets: with all steps as fast, or as slow, as a single one of those measured",
    ]
    runs_dir = Path(groups[0].run.runs_dir).absolute()
    disk = shutil.disk_usage(next(p for p in runs_dir.parents if p.exists())).free / 2**20
    peaks = sorted((costs["peak"] for costs in each), reverse=True)[:beside]
    for what, needed, free in (
        ("checkpoints", sum(costs["disk"] for costs in each), disk),
        ("memory at once", sum(peaks), each[0]["room"]),
    ):
        full = "; they DO NOT FIT" if needed > free else ""
        lines.append(f"{what}: up to {_size(needed)}, {_size(free)} are free{full}")
    if made_up := sorted({group.run.task.name for group in groups if not group.costs["val"]}):
        lines.append(f"not prepared, so made-up ids and no evaluation: {', '.join(made_up)}")
    return "\n".join(lines)
