"""`lra plan`: what a run or a sweep will cost, from the first steps of every distinct run."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

import hydra
import numpy as np
import pandas as pd
import pytorch_lightning as pl
import torch

from lra import data
from lra.base.errors import UserError, first_line
from lra.bench.train import random_batch
from lra.compute.gate import check_budget
from lra.data.loader import Loader
from lra.data.parallel import cores
from lra.data.prepare import find_prepared
from lra.runs.environment import peak_memory_mib
from lra.runs.folder import RunFolder
from lra.runs.folder import find as find_run
from lra.settings.compose import Run, check_settings, compose
from lra.settings.search_path import initialised
from lra.sweeps.status import jobs
from lra.training.checkpoints import Checkpoints
from lra.training.run import build
from lra.training.trainer import trainer_for

# Settings of the recipe that do not decide what a run costs.
FREE = ("lr", "betas", "eps", "weight_decay", "warmup", "schedule", "clip_at")
STEPS, LONGEST = 5, {"seconds": 30}  # timed, of which there are at least three
EVALUATED = 3  # batches, the first of which warms up


@dataclass
class RunGroup:
    """Runs of a sweep that cost the same."""

    words: list[str]  # of the first
    run: Run
    left: int = 0  # those that are not finished
    costs: dict[str, float] = field(default_factory=dict)  # as measured by first_steps

    @property
    def seconds(self) -> float:
        """Extrapolate to one run."""
        recipe, evaluation = self.run.protocol.recipe, self.run.protocol.evaluation
        val, test = (math.ceil(self.costs[split] / recipe.batch) for split in ("val", "test"))
        dev = evaluation.dev_batches if evaluation.dev_batches > 0 and val else val
        steps = recipe.steps
        if first := self.run.pretrain.recipe:  # a single text costs half as much as a pair
            texts = 2 if data.of(self.run.task).dual else 1
            steps += math.ceil(first.steps * first.batch / recipe.batch / texts)
        # The test set is evaluated with the last checkpoint and the best.
        batches = recipe.steps // evaluation.every * dev + 2 * test
        return self.costs["start"] + steps * self.costs["step"] + batches * self.costs["evaluation"]


def groups_of(words: Sequence[str], *, multirun: bool) -> tuple[list[RunGroup], int, Any]:
    """Put the runs of `lra train <words>` into groups; also returns how many there are,
    and the launcher's settings."""
    groups, runs = dict[str, RunGroup](), 0
    with initialised():
        for job in jobs(words, multirun=multirun):
            run = check_settings(hydra.compose("train", job))
            group, folder = groups.setdefault(cost_key(run), RunGroup(job, run)), find_run(run)
            runs += 1
            group.left += run.rerun or folder is None or folder.result() is None
        if not groups:
            raise UserError("this sweep has no jobs: does a glob match nothing?")
        launcher = hydra.compose("train", job, return_hydra_config=True).hydra.launcher
    return [*groups.values()], runs, launcher


def cost_key(run: Run) -> str:
    """Name everything that can decide what a run costs."""
    free: dict[str, Any] = dict.fromkeys(FREE)
    recipe = replace(run.protocol.recipe, **free)
    return repr(replace(run, seed=0, protocol=replace(run.protocol, recipe=recipe)))


def jobs_at_once(launcher: Any, runs: int) -> tuple[int, int]:
    """How many jobs a launcher does at once, and how many of them share a machine."""
    number = launcher.get("n_jobs") or launcher.get("array_parallelism") or 1
    number = min(runs, cores() if number == -1 else number)
    return number, 1 if launcher.get("_target_", "").endswith("SlurmLauncher") else number


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

    def lap(self) -> float:
        """Return the mean seconds between two ends, and forget them."""
        laps, self.ends = np.diff(self.ends), []
        return float(laps.mean())


def first_steps(words: list[str]) -> dict[str, float]:
    """Train some steps of a run and evaluate some batches by the trainer of real runs."""
    began, run, watch = time.perf_counter(), check_budget(compose(words)).run, Stopwatch()
    torch.set_num_threads(run.trainer.threads or torch.get_num_threads())
    size, world, rules = run.protocol.recipe.batch, run.processes, run.protocol.data
    prepared = find_prepared(run.task, max_length=rules.max_length, data_dir=run.data_dir)
    if prepared is None:
        train = dev = itertools.repeat(random_batch(run, torch.device("cpu"), share=world))
    else:
        loader: Any = partial(Loader, rules=rules, seed=run.seed, world=world)
        train = loader(prepared.split("train"), size, steps=STEPS + 1)
        dev = loader(prepared.split("val"), size, limit=EVALUATED)
    warnings.filterwarnings("ignore", "You defined a `validation_step` but have no")
    # Several devices are measured as one, with its share of the batch.
    trainer = replace(run.trainer, progress="off", devices=1, num_nodes=1, strategy="auto")
    with tempfile.TemporaryDirectory() as runs_dir:
        run = replace(run, trainer=trainer, logger={}, runs_dir=runs_dir)
        folder, module = RunFolder(run, ""), build(run)
        lightning = trainer_for(
            folder,
            Checkpoints(folder),
            watch,
            max_steps=STEPS + 1,
            min_steps=4,
            max_time=LONGEST,
            val_check_interval=None,
            limit_val_batches=EVALUATED,
        )
        with folder.lock():
            lightning.fit(module, train)
        costs = {"start": watch.ends[0] - began, "step": watch.lap()}
        lightning.validate(module, dev, verbose=False)
    device = lightning.strategy.root_device
    on_gpu = device.type == "cuda"
    room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    room = torch.cuda.mem_get_info(device)[1] if on_gpu else room
    splits = prepared.facts["splits"] if prepared else {}
    return costs | {
        "evaluation": watch.lap(),
        **{split: splits.get(split, {}).get("examples", 0) for split in ("val", "test")},
        "peak": peak_memory_mib(device),
        "room": room / 2**20,
        "share": 1.0 if on_gpu else torch.get_num_threads() / cores(),  # of the machine
    }


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the function where its peak of memory is its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def _time(seconds: float) -> timedelta:
    return timedelta(seconds=round(seconds))


def show_plan(options: Namespace) -> None:
    """Measure, and print the table and the totals."""
    groups, runs, launcher = groups_of(options.overrides, multirun=options.multirun)
    left = sum(group.left for group in groups)
    if left < runs:
        print(f"finished, no cost: {runs - left} of {runs} runs")
    common = set.intersection(*(set(group.words) for group in groups))
    table, error = [], ""
    for i, group in enumerate(groups, 1):
        if not group.left:
            continue
        name = " ".join(word for word in group.words if word not in common)
        name = name or f"{group.run.task.name} {group.run.attention['name']}"
        print(f"measuring {i} of {len(groups)}: {name} ", end="", file=sys.stderr, flush=True)
        try:
            group.costs = costs = in_new_process(first_steps, group.words)
        except Exception as reason:
            error = first_line(reason)
            print(f"not counted, because it cannot be measured: {error}", file=sys.stderr)
            continue
        print(f" {costs['step']:.2g} s a step", file=sys.stderr)
        table.append(
            {
                "runs": group.left,
                "steps": group.run.protocol.recipe.steps,
                "a step": f"{costs['step']:.2g} s",
                "one run": str(_time(group.seconds)),
                "MiB": round(costs["peak"]),
                "runs like": name,
            }
        )
    if groups := [group for group in groups if group.costs]:
        print(pd.DataFrame(table).to_string(index=False))
        print(totals(groups, *jobs_at_once(launcher, left)))
    elif error:
        raise UserError(f"nothing could be measured: {error}")


def totals(groups: Sequence[RunGroup], number: int, beside: int) -> str:
    """Write the time of all runs left, `number` at once, and what does not fit. Those `beside` each
    other on a machine or GPU take as much longer as they ask for more than it has."""
    each = [group for group in groups for _ in range(group.left)]
    crowd = max(1.0, beside * max(group.costs["share"] for group in each))
    alone = [group.seconds for group in each]
    seconds = crowd * max(*alone, sum(alone) / number, 0)
    peaks = sorted((group.costs["peak"] for group in each), reverse=True)[:beside]
    room = each[0].costs["room"]
    full = "; they DO NOT FIT" if sum(peaks) > room else ""
    lines = [
        f"{_time(seconds)} for {len(each)} runs, {number} at once",
        f"memory at once: up to {sum(peaks):,.0f} of {room:,.0f} MiB{full}",
    ]
    if made_up := sorted({group.run.task.name for group in groups if not group.costs["val"]}):
        lines.append(f"not prepared, so made-up ids and no evaluation: {', '.join(made_up)}")
    return "\n".join(lines)
