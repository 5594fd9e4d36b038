"""`lra plan`: what a run or a sweep will cost, from a few measured steps of every distinct run."""

from __future__ import annotations

import copy
import heapq
import math
import shutil
import statistics
import sys
from argparse import Namespace
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lra import data
from lra.base.config import Pad, UserError
from lra.bench.rounds import ask
from lra.bench.steps import FirstSteps, prepared_of
from lra.bench.worker import BenchMeter, BenchRules
from lra.data.parallel import cores
from lra.data.prepare import known_facts
from lra.data.verify import expected
from lra.runs.folder import find
from lra.settings.compose import Run, check_settings, compose, initialised, scale
from lra.sweeps.status import jobs

TIMEOUT = 900.0  # seconds for one measurement
# Settings of the recipe that do not decide what a step costs.
FREE = {"steps", "lr", "betas", "eps", "weight_decay", "warmup", "schedule", "clip_at"}
BUDGETS = [round(n * 10**p, 5) for p in range(-5, -1) for n in range(10, 100)] + [1.0]


@dataclass
class RunGroup:
    """Runs of a sweep that cost the same."""

    words: list[str]  # of the first
    run: Run
    step: str  # everything that can decide what a step costs
    sizes: dict[str, int]  # examples of val and test, as far as they are known
    made_up: bool  # whether its data are not prepared
    shared: set[str] = field(default_factory=set)  # words that all of them have
    name: str = ""
    runs: int = 0
    left: int = 0  # those that are not finished
    costs: dict[str, float] = field(default_factory=dict)  # as FirstSteps measures them
    stopped: str = ""  # why there are none

    def hours(self, pace: str = "mean", run: Run | None = None) -> float:
        """How long one run takes at the mean pace of a step, or at the low or the high one."""
        protocol, batch = (run or self.run).protocol, self.run.protocol.recipe.batch
        evaluation, steps = protocol.evaluation, protocol.recipe.steps
        val, test = (math.ceil(self.sizes.get(split, 0) / batch) for split in ("val", "test"))
        dev = evaluation.dev_batches if evaluation.dev_batches > 0 else val
        evaluated = steps // evaluation.every * dev + 2 * test  # the last checkpoint and the best
        if first := (run or self.run).pretrain.recipe:  # a single text costs half as much as a pair
            texts = 2 if data.of(self.run.task).dual else 1
            steps += math.ceil(first.steps * first.batch / batch / texts)
        seconds = steps * self.costs[pace] + evaluated * self.costs["evaluation"]
        return (self.costs["start"] + seconds) / 3600

    @cached_property
    def whole(self) -> Run:
        return compose([*self.words, "budget=1"])

    def at(self, budget: float) -> Run:
        run = copy.deepcopy(self.whole)
        run.budget = budget
        scale(run)
        return run


def groups_of(words: Sequence[str], *, multirun: bool) -> tuple[list[RunGroup], Any]:
    """The runs of `lra train <words>` in groups, and the settings of the launcher."""
    import hydra

    found: dict[str, RunGroup] = {}
    with initialised():
        for job in jobs(words, multirun=multirun):
            run = check_settings(hydra.compose("train", job))
            step, sizes = _step(run), _sizes(run)
            steps = run.protocol.recipe.steps, run.pretrain
            key = repr((step, steps, run.protocol.evaluation, sizes))
            if key not in found:
                found[key] = RunGroup(job, run, step, sizes, prepared_of(run) is None, set(job))
            group, folder = found[key], find(run)
            group.shared &= set(job)
            group.runs += 1
            group.left += run.rerun or folder is None or folder.result() is None
        if not found:
            raise UserError("this sweep has no jobs: does a glob match nothing?")
        launcher = hydra.compose("train", job, return_hydra_config=True).hydra.launcher
    groups = list(found.values())
    common = set.intersection(*(g.shared for g in groups))
    for g in groups:
        own = [word for word in g.words if word in g.shared - common]
        g.name = " ".join(own) or f"{g.run.task.name} {g.run.attention['name']}"
    return groups, launcher


def _step(run: Run) -> str:
    task, prepared = data.of(run.task), prepared_of(run)
    shape = task.classes, task.vocab, task.stack, task.per_token, task.dual
    lengths = prepared and (run.protocol.data.pad is not Pad.batch or prepared.fingerprint)
    protocol = {key: value for key, value in vars(run.protocol).items() if key != "evaluation"}
    recipe = {key: value for key, value in vars(protocol.pop("recipe")).items() if key not in FREE}
    return repr(
        (shape, lengths, run.attention, run.model, recipe, protocol, run.compute, run.trainer)
    )


def _sizes(run: Run) -> dict[str, int]:
    """Examples of val and test, as far as they are known before the data are prepared."""
    if prepared := prepared_of(run):
        return {s: prepared.facts["splits"][s]["examples"] for s in ("val", "test")}
    facts = known_facts(data.of(run.task), run.task, run.protocol.data.max_length)
    sizes = {s: facts["options"].get(f"n_{s}") for s in ("val", "test")}
    for entry in expected(facts):
        sizes |= {s: x["examples"] for s, x in entry.get("splits", {}).items() if s in sizes}
    return {s: size for s, size in sizes.items() if size is not None}


def at_once(launcher: Any, runs: int) -> tuple[int, bool, int]:
    """How many jobs a launcher does at once, whether on this machine, and how many share a GPU if
    not. Of Ray's GPUs one is known for certain."""
    target = launcher.get("_target_", "")
    packed = max(1, int(1 / (launcher.get("remote", {}).get("num_gpus") or 1)))
    number = launcher.get("n_jobs") or launcher.get("array_parallelism") or packed
    number = runs if target.endswith("LocalLauncher") else cores() if number == -1 else number
    here = not target.endswith(("SlurmLauncher", "RayLauncher"))
    return min(runs, number), here, min(runs, packed)


def makespan(hours: Iterable[float], jobs: int) -> float:
    """Hours until the last of these runs ends, if each begins as soon as there is room."""
    ends = [0.0] * jobs
    for run in hours:
        heapq.heapreplace(ends, ends[0] + run)
    return max(ends)


# ---------------------------------------------------------------------- the plan


class Span(NamedTuple):
    """Hours: as measured, and at least and at most."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{_digits(self.mean)} hours ({_digits(self.low)} to {_digits(self.high)})"


@dataclass
class Plan:
    """Measured groups, done `number` runs at a time."""

    groups: list[RunGroup]
    number: int
    here: bool  # on this machine, or on others like it
    packed: int = 1  # on others: how many share a GPU

    @cached_property
    def crowd(self) -> float:
        """How many times the cores of this machine, or its GPU, the runs at once ask for."""
        asked = self.number * max(g.costs["share"] for g in self.groups)
        return max(1.0, asked if self.here else self.packed)

    def span(self, budget: float | None = None) -> Span:
        """Runs that crowd each other take as much longer, at most. With another budget, none is
        finished."""
        found = []
        for pace in Span._fields:
            hours: list[float] = []
            for g in self.groups:
                one = g.hours(pace, None if budget is None else g.at(budget))
                hours += [one] * (g.left if budget is None else g.runs)
            found.append(makespan(hours, self.number) * (1 if pace == "low" else self.crowd))
        return Span(*found)

    def budget(self, hours: float) -> str:
        """The largest budget whose runs all end within these hours, even at the slow pace."""
        fitting = bisect_right(BUDGETS, hours, key=lambda budget: self.span(budget).high)
        budget = BUDGETS[max(fitting - 1, 0)]
        took = f"budget={budget:g}: {self.span(budget)} for all {sum(g.runs for g in self.groups)}"
        return took if fitting else f"no budget fits into {hours:g} hours; the smallest is {took}"

    def lines(self) -> Iterator[str]:
        """Totals, how sure they are, and what does not fit."""
        each = [g for g in self.groups for _ in range(g.left)]
        if not each:
            return
        yield f"{self.span()} for {len(each)} runs, {self.number} at once"
        spread = statistics.median(
            (g.costs["high"] - g.costs["low"]) / 2 / g.costs["mean"] for g in self.groups
        )
        yield (
            f"how sure: eight in ten steps lay within ±{spread:.0%}, measured here, alone, for "
            "seconds; "
            + (
                f"{self.number} at once ask for {self.crowd:.1f} times "
                f"{'this machine' if self.here else 'a GPU'}, which may take as much longer"
                if self.crowd > 1
                else "runs and other work beside each other make steps slower"
            )
            + ("" if self.here else "; other machines have other speeds")
        )
        disk = [g.costs["disk"] / 2**20 for g in each]
        runs_dir = Path(self.groups[0].run.runs_dir).absolute()
        free = shutil.disk_usage(next(p for p in runs_dir.parents if p.exists())).free / 2**20
        full = "; they DO NOT FIT" if sum(disk) > free else ""
        yield (
            f"disk: checkpoints of {max(disk):,.1f} MiB per run, {sum(disk):,.0f} MiB in all, "
            f"{free:,.0f} MiB are free{full}"
        )
        peaks = sorted((g.costs["peak_mib"] for g in each), reverse=True)
        together = self.number if self.here else self.packed
        memory, free = sum(peaks[:together]), each[0].costs["room_mib"]
        full = "; they DO NOT FIT, do fewer at once" if memory > free else ""
        yield f"memory: up to {memory:,.0f} MiB at once, {free:,.0f} MiB are free{full}"


def show(options: Namespace) -> None:
    """Measure, and print the table and the totals."""
    groups, launcher = groups_of(options.overrides, multirun=options.multirun)
    runs, left = sum(g.runs for g in groups), sum(g.left for g in groups)
    if left < runs:
        print(f"{runs - left} of {runs} runs are finished and cost nothing")
    groups = [g for g in groups if g.left or options.hours]
    if not groups:
        return
    _measure(groups, options.steps)
    Console(highlight=False).print(_table(groups))
    measured = [g for g in groups if not g.stopped]
    if not measured:
        raise UserError(f"nothing could be measured: {groups[0].stopped}")
    number, here, packed = at_once(launcher, left or runs)
    plan = Plan(measured, options.jobs or number, here, packed)
    print("\n".join(plan.lines()))
    if len(measured) < len(groups):
        print(f"without {sum(g.left for g in groups if g.stopped)} runs that were not measured")
    if made_up := sorted({g.run.task.name for g in measured if g.made_up}):
        print(f"not prepared, so measured with made-up ids of full length: {', '.join(made_up)}")
    if unknown := sorted({g.run.task.name for g in measured if len(g.sizes) < 2}):
        print(f"of unknown size until prepared, so without evaluation: {', '.join(unknown)}")
    if options.hours:
        print(plan.budget(options.hours))


def _measure(groups: Sequence[RunGroup], steps: int) -> None:
    """Give every group its costs, or the reason why it has none: in a process of its own, and once
    for groups that differ in nothing but the number of steps."""
    known: dict[str, RunGroup] = {}
    for i, group in enumerate(groups, 1):
        if group.step not in known:
            print(f"measuring {i}/{len(groups)}: {group.name}", file=sys.stderr, flush=True)
            threads = group.run.trainer.threads or torch.get_num_threads()
            meter = BenchMeter(BenchRules(rounds=1, threads=threads, timeout=TIMEOUT))
            case = FirstSteps(group="plan", name=group.name, words=group.words, steps=steps)
            rows = ask([case], meter)
            group.costs = {row.measure: row.values[0] for row in rows if row.values}
            reasons = [row.stopped for row in rows if row.stopped]
            group.stopped = "".join(reasons[:1]).removeprefix("UserError: ")
            known[group.step] = group
        group.costs, group.stopped = known[group.step].costs, known[group.step].stopped


def _table(groups: Sequence[RunGroup]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    table.add_column("runs like")
    for head in ("runs", "steps", "s/step", "hours per run", "hours", "peak MiB"):
        table.add_column(head, justify="right")
    for g in groups:
        line = [g.name, f"{g.left}", f"{g.run.protocol.recipe.steps:,}"]
        if not g.stopped:
            line += [f"{g.costs['mean']:.3g}", _digits(g.hours()), _digits(g.left * g.hours())]
            line += [f"{g.costs['peak_mib']:,.0f}"]
        table.add_row(*map(escape, [*line, g.stopped] if g.stopped else line))
    return table


def _digits(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.2g}"
