"""`lra leaderboard`: the sweep of experiment=leaderboard in the order of what an hour teaches,
until the hours are over."""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lra.base.errors import UserError

EXPERIMENT = "experiment=leaderboard"
FIRST = ("text", "image")  # whose rows are in every table of the benchmark
LEFT_OUT = ("-m", "--multirun")
BEYOND = "beyond the hours"


def add_arguments(board: argparse.ArgumentParser) -> None:
    board.description = (
        "Trains the methods, tasks and seeds of experiment=leaderboard: one seed of all that fits "
        "before any second seed, Text and Image first, cheap methods before dear ones. The "
        "same command goes on where it stopped; several machines share one runs_dir, or take "
        "shard=3/64 each."
    )
    board.add_argument("overrides", nargs="*", help="as for lra train: trainer=gpu shard=1/2")
    board.add_argument("--hours", type=float, required=True, help="after which it stops")
    board.set_defaults(run=run_board)


@dataclass
class Cell:
    """A run of the board."""

    words: list[str]
    task: str
    attention: str
    seed: int
    seconds: float  # estimated; only their ratios count, once a run has ended

    @property
    def name(self) -> str:
        return f"{self.task} {self.attention} seed {self.seed}"


def run_board(arguments: argparse.Namespace) -> None:
    if not (arguments.hours > 0 and math.isfinite(arguments.hours)):
        raise UserError(f"--hours {arguments.hours:g} is no budget: say how many, as --hours 24")
    end = time.monotonic() + 3600 * arguments.hours
    words = [word for word in arguments.overrides if word not in LEFT_OUT]
    words = words if any(w.startswith("experiment=") for w in words) else [EXPERIMENT, *words]
    cells = in_order(cells_of(words))
    states = work_off(cells, end)
    print(summary(cells, states))


def cells_of(words: Sequence[str]) -> list[Cell]:
    """The runs of the sweep; of a task whose data are missing none, and a line says so."""
    import hydra
    import torch

    from lra.bench.estimate import devices
    from lra.bench.unmeasured import estimated_step
    from lra.data.prepare import refuse_download
    from lra.settings.compose import check_settings
    from lra.settings.search_path import initialised
    from lra.sweeps.status import jobs

    cells, missing = list[Cell](), dict[str, str]()
    steps: dict[str, float] = {}  # of a network; seeds and rates take as long as each other
    with initialised():
        for job in jobs(words):
            run = check_settings(hydra.compose("train", job))
            try:
                length = run.protocol.data.max_length
                refuse_download(run.task, max_length=length, data_dir=run.data_dir)
            except UserError as error:
                missing[run.task.name] = str(error)
                continue
            gpu = run.trainer.accelerator != "cpu" and torch.cuda.is_available()
            device = next(name for name in devices() if name.startswith("NVIDIA") == gpu)
            key = repr((run.task, run.attention, run.model))
            if key not in steps:
                steps[key] = estimated_step(run, device)
            seconds = steps[key] * run.protocol.recipe.steps
            cells.append(Cell(job, run.task.name, run.attention["name"], run.seed, seconds))
    for sentence in missing.values():
        print(f"left out: {sentence}", flush=True)
    if not cells:
        raise UserError("no run of this board can begin: prepare the data of a task first")
    return cells


def in_order(cells: Sequence[Cell]) -> list[Cell]:
    """First one seed of all, then a second: of Text and Image first, the cheapest first."""
    seeds = list(dict.fromkeys(cell.seed for cell in cells))
    return sorted(
        cells, key=lambda c: (seeds.index(c.seed), c.task not in FIRST, c.seconds, c.name)
    )


def work_off(cells: Sequence[Cell], end: float) -> dict[str, str]:
    """Do the runs one after the other, but what does not fit into the time that is left; returns
    the state of each by its name. A run that the end cuts leaves a checkpoint."""
    states: dict[str, str] = {}
    logs: list[float] = []  # of the time of a run over its estimate
    for i, cell in enumerate(cells, 1):
        left = end - time.monotonic()
        scale = math.exp(statistics.fmean(logs)) if logs else 0.0
        if left <= 0 or cell.seconds * scale > left:
            states[cell.name] = "finished before" if _is_finished(cell) else BEYOND
            continue
        print(f"{i} of {len(cells)}: {cell.name}, {left / 3600:.3g} hours left", flush=True)
        began = time.monotonic()
        states[cell.name] = _do(cell, left)
        if states[cell.name] == "done":
            logs.append(math.log((time.monotonic() - began) / cell.seconds))
    return states


def _is_finished(cell: Cell) -> bool:
    import hydra

    from lra.runs.trials import find_settled
    from lra.settings.compose import check_settings
    from lra.settings.search_path import initialised

    with initialised():
        folder = find_settled(check_settings(hydra.compose("train", cell.words)))
    return folder is not None and folder.result() is not None


def _do(cell: Cell, left: float) -> str:
    import hydra

    from lra.settings.compose import check_settings
    from lra.settings.search_path import initialised
    from lra.sweeps.shard import without_shard
    from lra.sweeps.sweep import attempt

    words = without_shard([*cell.words, f"limit_minutes={left / 60:.4g}"])
    with initialised():
        run = check_settings(hydra.compose("train", words))
    outcome = attempt(run, words, f"[{cell.name}]")
    if outcome.reason:
        print(f"[{cell.name}] {outcome.state}: {outcome.reason}", flush=True)
    return "begun" if "at its limit" in outcome.reason else outcome.state


def summary(cells: Sequence[Cell], states: dict[str, str]) -> str:
    """What the board has and what it lacks: a partial one is valid, each row by itself."""
    finished = {name for name, state in states.items() if state in ("done", "finished before")}
    counts = Counter(states.values())
    lines = ["board: " + ", ".join(f"{n} {state}" for state, n in counts.most_common())]
    for task in dict.fromkeys(cell.task for cell in cells):
        methods = dict.fromkeys(cell.attention for cell in cells if cell.task == task)
        seeds = {m: _seeds(cells, task, m, lambda c: c.name in finished) for m in methods}
        lacking = [method for method, n in seeds.items() if n == 0]
        have = f"{len(methods) - len(lacking)} of {len(methods)} methods"
        several = sum(n > 1 for n in seeds.values())
        lines.append(
            f"  {task}: {have}, {several} with more than one seed"
            + (f"; missing {', '.join(lacking)}" if lacking else "")
        )
    return "\n".join(lines)


def _seeds(cells: Sequence[Cell], task: str, method: str, counts: Callable[[Cell], bool]) -> int:
    return sum(c.task == task and c.attention == method and counts(c) for c in cells)
