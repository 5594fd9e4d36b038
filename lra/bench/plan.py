"""`lra plan`: what a run or a sweep will cost, from the first steps of every distinct run."""

from __future__ import annotations

import contextlib
import itertools
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

import hydra
import numpy as np
import pandas as pd
import pytorch_lightning as pl
import torch

from lra import data
from lra.base.config import Tuned
from lra.base.errors import UserError, first_line
from lra.bench.elsewhere import elsewhere
from lra.bench.train import random_batch
from lra.compute.gate import check_budget
from lra.data.loader import Loader
from lra.data.parallel import cores
from lra.data.prepare import find_prepared
from lra.runs.environment import peak_memory_mib
from lra.runs.search import folder_of
from lra.runs.trials import find_settled
from lra.settings.compose import check_settings, compose
from lra.settings.run import Run
from lra.settings.search_path import initialised
from lra.settings.trials import trials_of, words_of_trial
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
    costs: dict[str, float] = field(default_factory=dict)  # as first_steps tells them
    whole: bool = True  # else measuring was stopped, and some costs are missing or lower bounds
    timed: int = 0  # steps
    failed: bool = False  # it cannot be measured

    @property
    def known(self) -> bool:
        return "step" in self.costs

    @property
    def measured(self) -> str:
        """How much of it has been measured, for the table."""
        if self.known and self.whole:
            return "all"
        if self.timed:
            return f"{self.timed} step{'s' * (self.timed > 1)}"
        return "the start" if "start" in self.costs else "nothing"

    @property
    def seconds(self) -> float:
        """Extrapolate to one run; evaluations that were not measured are left out."""
        recipe, evaluation = self.run.protocol.recipe, self.run.protocol.evaluation
        val, test = (math.ceil(self.costs[split] / recipe.batch) for split in ("val", "test"))
        dev = evaluation.dev_batches if evaluation.dev_batches > 0 and val else val
        steps = recipe.steps
        if first := self.run.pretrain.recipe:  # a single text costs half as much as a pair
            texts = 2 if data.of(self.run.task).dual else 1
            steps += math.ceil(first.steps * first.batch / recipe.batch / texts)
        # The test set is evaluated with the last checkpoint and the best.
        batches = recipe.steps // evaluation.every * dev + 2 * test
        trained = self.costs["start"] + steps * self.costs["step"]
        return trained + batches * self.costs.get("evaluation", 0.0)


def groups_of(words: Sequence[str], *, multirun: bool) -> tuple[list[RunGroup], int, Any]:
    """Put the runs of `lra train <words>` into groups; also returns how many there are,
    and the launcher's settings."""
    groups, seen = dict[str, RunGroup](), set[tuple[str, ...]]()
    with initialised():
        for job in jobs(words, multirun=multirun):
            for its_words, run in with_trials(job, check_settings(hydra.compose("train", job))):
                if (key := tuple(its_words)) in seen:  # seeds of a run share its trials
                    continue
                seen.add(key)
                group = groups.setdefault(cost_key(run), RunGroup(its_words, run))
                folder = find_settled(run)
                group.left += run.rerun or folder is None or folder.result() is None
        if not groups:
            raise UserError("this sweep has no jobs: does a glob match nothing?")
        launcher = hydra.compose("train", job, return_hydra_config=True).hydra.launcher
    return [*groups.values()], len(seen), launcher


def with_trials(words: list[str], run: Run) -> Iterator[tuple[list[str], Run]]:
    """Yield the trials that choose a run's rate, and the run, each with its words."""
    if run.tune.name is not Tuned.none:
        for trial in trials_of(run):
            yield words_of_trial(words, run, trial), trial
    yield words, run


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


class Stopped(Exception):
    """The time for measuring is up."""


class Stopwatch(pl.Callback):
    """Notes when each batch ends, shows it by a dot, and tells what is known by then."""

    def __init__(self, tell: Callable[[dict[str, float]], None]) -> None:
        self.tell, self.began = tell, time.perf_counter()
        self.what = "step"  # of which batch ends are noted
        self.ends: list[float] = []

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        if trainer.strategy.root_device.type == "cuda":
            torch.cuda.synchronize(trainer.strategy.root_device)
        self.ends.append(time.perf_counter())
        print(".", end="", file=sys.stderr, flush=True)
        if len(self.ends) > 1:  # the first batch warms up
            self.tell({self.what: float(np.diff(self.ends).mean())})
        elif self.what == "step":
            self.tell({"start": self.ends[0] - self.began})

    on_validation_batch_end = on_train_batch_end

    def time_evaluation(self) -> None:
        """Note the ends of evaluated batches from now on."""
        self.what, self.ends = "evaluation", []


def first_steps(words: list[str], runs_dir: str, tell: Callable[[dict[str, float]], None]) -> None:
    """Train some steps of a run and evaluate some batches by the trainer of real runs; tell each
    cost as soon as it is known, and again when it is known better."""
    watch, run = Stopwatch(tell), check_budget(compose(words)).run
    torch.set_num_threads(run.trainer.threads or torch.get_num_threads())
    size, world, rules = run.protocol.recipe.batch, run.processes, run.protocol.data
    prepared = find_prepared(run.task, max_length=rules.max_length, data_dir=run.data_dir)
    if prepared is None:
        train = dev = itertools.repeat(random_batch(run, torch.device("cpu"), share=world))
    else:
        loader: Any = partial(Loader, rules=rules, seed=run.seed, world=world)
        train = loader(prepared.split("train"), size, steps=STEPS + 1)
        dev = loader(prepared.split("val"), size, limit=EVALUATED)
    splits = prepared.facts["splits"] if prepared else {}
    tell({split: splits.get(split, {}).get("examples", 0) for split in ("val", "test")})
    warnings.filterwarnings("ignore", "You defined a `validation_step` but have no")
    # Several devices are measured as one, with its share of the batch.
    trainer = replace(run.trainer, progress="off", devices=1, num_nodes=1, strategy="auto")
    run = replace(run, trainer=trainer, logger={}, callbacks={}, runs_dir=runs_dir)
    folder, module = folder_of(run, ""), build(run)
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
    watch.time_evaluation()
    lightning.validate(module, dev, verbose=False)
    device = lightning.strategy.root_device
    on_gpu = device.type == "cuda"
    room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    room = torch.cuda.mem_get_info(device)[1] if on_gpu else room
    tell(
        {
            "peak": peak_memory_mib(device),
            "room": room / 2**20,
            "share": 1.0 if on_gpu else torch.get_num_threads() / cores(),  # of the machine
        }
    )


def in_new_process(
    words: list[str], tell: Callable[[dict[str, float]], None], until: float
) -> None:
    """Call `first_steps` where its peak of memory is its own. Stopped, when it has not ended at
    `until` by the monotonic clock."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    # The folder is this process's, because the other may be killed.
    with tempfile.TemporaryDirectory() as runs_dir:
        process = context.Process(target=_send_first_steps, args=(words, runs_dir, sender))
        # Ctrl-C at the terminal reaches both processes. It is ours to handle; the other inherits
        # that it is blocked. Python's tracker of resources, once started, does not unblock it.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        sender.close()
        try:
            _listen(receiver, tell, until)
            process.join()
        finally:
            process.kill()
            process.join()
        if process.exitcode:
            raise UserError(f"its process ended with exit code {process.exitcode}")


def _listen(receiver: Connection, tell: Callable[[dict[str, float]], None], until: float) -> None:
    """Tell what the other process sends, until it has sent all."""
    while True:
        left = None if math.isinf(until) else max(0.0, until - time.monotonic())
        if not receiver.poll(left):
            raise Stopped
        try:
            message = receiver.recv()
        except EOFError:
            return
        if isinstance(message, str):
            raise UserError(message)
        tell(message)


def _send_first_steps(words: list[str], runs_dir: str, sender: Connection) -> None:
    """Send what is known as dicts, and an error as a text."""
    try:
        first_steps(words, runs_dir, sender.send)
    except Exception as error:
        with contextlib.suppress(OSError):  # nobody listens any more
            sender.send(first_line(error))


def _time(seconds: float) -> timedelta:
    return timedelta(seconds=round(seconds))


def show_plan(options: Namespace) -> None:
    """Measure, and print the table and the totals; if the time is up or somebody interrupts, of
    what is known by then."""
    minutes = options.minutes
    if minutes is not None and not minutes > 0:
        raise UserError(f"--minutes {minutes:g} is no time: say how many minutes, as --minutes 5")
    if not options.overrides:
        raise UserError(
            "which run? give its words, as for lra train: lra plan experiment=demo attention=luna"
        )
    until = math.inf if minutes is None else time.monotonic() + 60 * minutes
    groups, runs, launcher = groups_of(options.overrides, multirun=options.multirun)
    left = sum(group.left for group in groups)
    if left < runs:
        print(f"finished, no cost: {runs - left} of {runs} run{'s' * (runs != 1)}")
    groups = [group for group in groups if group.left]
    names, interrupted, error = names_of(groups), False, ""
    try:
        error = measure(groups, names, until)
    except Stopped:
        print(f"\nstopped after {minutes:g} minutes", file=sys.stderr)
    except KeyboardInterrupt:
        interrupted = True
    # Those that cannot be measured have been named.
    counted = [(group, name) for group, name in zip(groups, names, strict=True) if not group.failed]
    if counted:
        print(table_of(counted).to_string(index=False))
    if known := [group for group, _ in counted if group.known]:
        unknown = sum(group.left for group, _ in counted if not group.known)
        print(totals(known, *jobs_at_once(launcher, left), unknown=unknown))
    if said := elsewhere(group.run for group in groups):
        print(said)
    if interrupted:
        raise KeyboardInterrupt
    if groups and not known:
        raise UserError(f"nothing could be measured: {error or 'give it more --minutes'}")


def names_of(groups: Sequence[RunGroup]) -> list[str]:
    """Name each group by the words that are not those of all."""
    common = set.intersection(*(set(group.words) for group in groups)) if groups else set()
    names = [" ".join(word for word in group.words if word not in common) for group in groups]
    usual = (f"{group.run.task.name} {group.run.attention['name']}" for group in groups)
    return [name or other for name, other in zip(names, usual, strict=True)]


def measure(groups: Sequence[RunGroup], names: Sequence[str], until: float) -> str:
    """Measure one group after the other; returns the last error. What is known of a group stands in
    it at any moment, and `whole` is false until all is."""
    error = ""
    for group in groups:
        group.whole = False
    for i, (group, name) in enumerate(zip(groups, names, strict=True), 1):
        if time.monotonic() >= until:
            raise Stopped
        print(f"measuring {i} of {len(groups)}: {name} ", end="", file=sys.stderr, flush=True)
        heard = time.monotonic()

        def learn(costs: dict[str, float], group: RunGroup = group) -> None:
            nonlocal heard
            heard = time.monotonic()
            group.timed += "step" in costs
            group.costs |= costs

        try:
            in_new_process(group.words, learn, until)
        except (Stopped, KeyboardInterrupt):
            if "start" in group.costs and not group.known:  # during the second step
                group.costs["step"] = time.monotonic() - heard
            raise
        except Exception as reason:
            error, group.failed = first_line(reason), True
            print(f"not counted, because it cannot be measured: {error}", file=sys.stderr)
            continue
        group.whole = True
        print(f" {group.costs['step']:.2g} s a step", file=sys.stderr)
    return error


def table_of(groups: Sequence[tuple[RunGroup, str]]) -> pd.DataFrame:
    """A line per group. If measuring was stopped, each line says how much of it was measured."""
    lines = []
    for group, name in groups:
        over = "" if group.whole else "over "  # without evaluations, or before the second step
        step = "" if group.timed else over
        lines.append(
            {
                "runs": group.left,
                "steps": group.run.protocol.recipe.steps,
                "a step": f"{step}{group.costs['step']:.2g} s" if group.known else "unknown",
                "one run": f"{over}{_time(group.seconds)}" if group.known else "unknown",
                "MiB": round(group.costs["peak"]) if group.whole else "unknown",
                "measured": group.measured,
                "runs like": name,
            }
        )
    table = pd.DataFrame(lines)
    return table.drop(columns="measured") if all(group.whole for group, _ in groups) else table


def totals(groups: Sequence[RunGroup], number: int, beside: int, *, unknown: int = 0) -> str:
    """Write the time of all runs left, `number` at once, and what does not fit. Those `beside` each
    other on a machine or GPU take as much longer as they ask for more than it has. Of `unknown`
    other runs nothing is known."""
    each = [group for group in groups for _ in range(group.left)]
    whole = [group.costs for group in each if group.whole]
    crowd = max([1.0, *(beside * costs["share"] for costs in whole)])
    alone = [group.seconds for group in each]
    seconds = crowd * max(*alone, sum(alone) / number, 0)
    over = "over " if unknown or len(whole) < len(each) else ""
    runs = len(each) + unknown
    side_by_side = f", {number} at once" if runs > 1 else ""
    lines = [f"{over}{_time(seconds)} for {runs} run{'s' * (runs != 1)}{side_by_side}"]
    if unknown:
        lines[0] += f"; the time of {unknown} of them is unknown and not in it"
    if whole:
        peaks = sorted((costs["peak"] for costs in whole), reverse=True)[:beside]
        room = whole[0]["room"]
        full = "; they DO NOT FIT" if sum(peaks) > room else ""
        lines.append(f"memory at once: up to {sum(peaks):,.0f} of {room:,.0f} MiB{full}")
        if over:
            lines[-1] += ", of the runs that were measured"
    if made_up := sorted({group.run.task.name for group in groups if not group.costs["val"]}):
        lines.append(f"not prepared, so made-up ids and no evaluation: {', '.join(made_up)}")
    return "\n".join(lines)
