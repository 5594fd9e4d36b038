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
from collections.abc import Callable, Sequence
from dataclasses import replace
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

from lra.base.config import Tuned
from lra.base.errors import UserError, first_line
from lra.bench.elsewhere import elsewhere
from lra.bench.estimate import device_named
from lra.bench.run_group import RunGroup
from lra.bench.train import random_batch
from lra.bench.unmeasured import about_estimates, estimate, refuse_missing_devices
from lra.compute.gate import check_budget
from lra.data.loader import Loader
from lra.data.parallel import cores
from lra.data.prepare import find_prepared
from lra.runs.environment import peak_memory_mib
from lra.runs.search import folder_of
from lra.runs.trials import Outcome, find_settled, once
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


class Enough(Exception):
    """A first step is known; all of the run is measured later."""


def groups_of(words: Sequence[str], *, multirun: bool) -> tuple[list[RunGroup], int, Any]:
    """Put the runs of `lra train <words>` into groups; also returns how many there are,
    and the launcher's settings."""
    groups, seen, outcome = dict[str, RunGroup](), set[tuple[str, ...]](), once()
    with initialised():
        for job in jobs(words, multirun=multirun):
            run = check_settings(hydra.compose("train", job))
            trials = with_words(job, run)
            for its_words, its_run in [*trials, (job, run)]:
                if (key := tuple(its_words)) in seen:  # seeds of a run share its trials
                    continue
                seen.add(key)
                group = groups.setdefault(cost_key(its_run), RunGroup(its_words, its_run))
                left = is_left(run, outcome) if its_run is run else outcome(its_run) is None
                group.left += left
        if not groups:
            raise UserError("this sweep has no jobs: does a glob match nothing?")
        launcher = hydra.compose("train", job, return_hydra_config=True).hydra.launcher
    return [*groups.values()], len(seen), launcher


def with_words(words: list[str], run: Run) -> list[tuple[list[str], Run]]:
    """List the trials that choose a run's rate, each with its words."""
    if run.tune.name is Tuned.none:
        return []
    return [(words_of_trial(words, run, trial), trial) for trial in trials_of(run)]


def is_left(run: Run, outcome: Callable[[Run], Outcome | None]) -> bool:
    folder = find_settled(run, outcome)
    return run.rerun or folder is None or folder.result() is None


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
    """Measure or estimate, and print the table and the totals; if the time is up or somebody
    interrupts, of what is known by then."""
    minutes = options.minutes
    if minutes is not None and not minutes > 0:
        raise UserError(f"--minutes {minutes:g} is no time: say how many minutes, as --minutes 5")
    if not options.overrides:
        raise UserError(
            "which run? give its words, as for lra train: lra plan experiment=demo attention=luna"
        )
    if options.price is not None and not (options.device and options.price > 0):
        raise UserError("--price is of an hour of --device, and above 0: --device h100 --price 2.5")
    device = device_named(options.device) if options.device else ""
    until = math.inf if minutes is None else time.monotonic() + 60 * minutes
    groups, runs, launcher = groups_of(options.overrides, multirun=options.multirun)
    left = sum(group.left for group in groups)
    if left < runs:
        print(f"finished, no cost: {runs - left} of {runs} run{'s' * (runs != 1)}")
    groups = [group for group in groups if group.left]
    names, interrupted, error = names_of(groups), False, ""
    try:
        if not device:
            refuse_missing_devices(groups)
            error = measure(groups, names, until)
    except Stopped:
        print(f"\nstopped after {minutes:g} minutes", file=sys.stderr)
    except KeyboardInterrupt:
        interrupted = True
    reference = estimate(groups, device)
    # Those that cannot be measured have been named.
    counted = [(group, name) for group, name in zip(groups, names, strict=True) if not group.failed]
    if counted:
        print(table_of(counted).to_string(index=False))
    if known := [group for group, _ in counted if group.known]:
        unknown = sum(group.left for group, _ in counted if not group.known)
        at_once = (1, 1) if device else jobs_at_once(launcher, left)
        print(totals(known, *at_once, unknown=unknown))
    if reference:
        print(
            about_estimates(
                groups, reference, options.price if device else None, hours=bool(device)
            )
        )
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
    """Measure all groups; returns the last error. Where the time is limited, a first step of each
    is timed in one half of it, and as many as possible are measured whole in the other. What is
    known of a group stands in it at any moment, and `whole` is false until all is."""
    error = ""
    for group in groups:
        group.whole = False
    for little in (False,) if math.isinf(until) or len(groups) == 1 else (True, False):
        waiting = [i for i, group in enumerate(groups) if not (group.whole or group.failed)]
        half = time.monotonic() + (until - time.monotonic()) / 2
        for place, i in enumerate(waiting):
            now = time.monotonic()
            if now >= until:
                raise Stopped
            end = now + max(half - now, 0) / (len(waiting) - place) if little else until
            print(f"measuring {i + 1} of {len(groups)}: {names[i]} ", end="", file=sys.stderr)
            error = _measure_one(groups[i], end, little=little) or error
    return error


def _measure_one(group: RunGroup, end: float, *, little: bool) -> str:
    """Measure one group, or a first step of it; returns what is wrong with it."""
    heard = time.monotonic()

    def learn(costs: dict[str, float]) -> None:
        nonlocal heard
        heard = time.monotonic()
        group.timed += "step" in costs
        group.costs |= costs
        if little and group.timed:
            raise Enough

    try:
        in_new_process(group.words, learn, end)
    except (Stopped, KeyboardInterrupt) as stopped:
        if "start" in group.costs and not group.known:  # during the second step
            group.costs["step"] = time.monotonic() - heard
        if not little or isinstance(stopped, KeyboardInterrupt):
            raise
    except Enough:
        pass
    except Exception as reason:
        group.failed = True
        print(f"not counted, because it cannot be measured: {first_line(reason)}", file=sys.stderr)
        return first_line(reason)
    else:
        group.whole = True
    said = f" {group.costs['step']:.2g} s a step" if group.known else ""
    print(said, file=sys.stderr, flush=True)
    return ""


def table_of(groups: Sequence[tuple[RunGroup, str]]) -> pd.DataFrame:
    """A line per group. If measuring was stopped, each line says how much of it was measured."""
    lines = []
    for group, name in groups:
        over = "" if group.whole else "over "  # without evaluations, or before the second step
        over = "~" if group.estimated else over
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
    if over and not unknown and all(group.whole or group.estimated for group in each):
        over = "~"
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
