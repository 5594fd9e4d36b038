"""`lra bench train`: what the framework costs beside the mathematics, as ratios measured in one
run.

Three questions, one table each: how much of a training step is loading data, how much is the
framework (against a bare loop of the same network, optimiser and batches), how long from start to
the first step. Repetitions are interleaved and medians quoted, because machines are noisy.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytorch_lightning as pl
import torch
import torch.nn.functional as F

from lra import environment, optim, parent
from lra.bench import RESULTS
from lra.callbacks import Checkpoints
from lra.compose import Run, compose
from lra.config import UserError
from lra.data.loader import Loader
from lra.data.prepare import find_or_prepare
from lra.disk import write_json
from lra.run import build, trainer_for
from lra.runs import RunFolder


def train(overrides: Sequence[str], *, steps: int, repeats: int) -> None:
    run = compose([*overrides, "trainer.progress=off"])
    prepared = find_or_prepare(
        run.task, max_length=run.protocol.data.max_length, data_dir=run.data_dir
    )
    print(f"{run.task.name}/{run.attention['name']}, batch {run.protocol.recipe.batch}, "
          f"{steps} steps x {repeats} repetitions, {torch.get_num_threads()} threads")  # fmt: skip
    bare: list[float] = []
    framework: list[float] = []
    loading: list[float] = []
    for repetition in range(repeats + 1):
        times = (
            _loop(run, prepared, steps),
            _lightning(run, prepared, steps),
            _loading(run, prepared, steps),
        )
        if repetition:  # the first warms up
            for kept, seconds in zip((bare, framework, loading), times, strict=True):
                kept.append(seconds / steps)
    startup = [_startup(overrides) for _ in range(3)]
    step = statistics.median(bare)
    ratios = [f / b for f, b in zip(framework, bare, strict=True)]
    shares = [x / b for x, b in zip(loading, bare, strict=True)]
    figures = {
        "step, bare loop": f"{step * 1e3:.2f} ms",
        "step, framework": f"{statistics.median(framework) * 1e3:.2f} ms",
        "framework overhead": _spread([ratio - 1 for ratio in ratios], "+.1%"),
        "data loading": _spread(shares, ".2%") + " of a step",
        "start to first step": f"{statistics.median(startup):.1f} s",
    }
    for name, value in figures.items():
        print(f"  {name:<20} {value}")
    _write(run, overrides, figures)


def _spread(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} .. {max(values):{form}})"


def _loader(run: Run, prepared: Any, steps: int) -> Loader:
    protocol = run.protocol
    return Loader(
        prepared.split("train"),
        protocol.recipe.batch,
        rules=protocol.data,
        seed=run.seed,
        steps=steps,
    )


def _loop(run: Run, prepared: Any, steps: int) -> float:
    """The least a training loop can be."""
    network = build(run).network
    optimizer, scheduler = optim.build(network.parameters(), run.protocol.recipe)
    recipe = run.protocol.recipe
    rules: dict[str, Callable[..., Any]] = {
        "value": torch.nn.utils.clip_grad_value_,
        "norm": torch.nn.utils.clip_grad_norm_,
    }
    clip = rules.get(recipe.clip.name)
    batches = list(_loader(run, prepared, steps))
    start = time.perf_counter()
    for batch in batches:
        loss = F.cross_entropy(network(batch.ids, batch.mask), batch.labels)
        loss.backward()
        if clip is not None:
            clip(network.parameters(), recipe.clip_at)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return time.perf_counter() - start


class _Stopwatch(pl.Callback):
    """From the first batch to the end of the last step: what a step costs, without start-up."""

    def on_train_start(self, *_: Any) -> None:
        self.start = time.perf_counter()

    def on_train_end(self, *_: Any) -> None:
        self.seconds = time.perf_counter() - self.start


def _lightning(run: Run, prepared: Any, steps: int) -> float:
    """The trainer, module, callbacks and loader of a real run, but for its evaluation at the
    end."""
    with tempfile.TemporaryDirectory() as runs:
        run = replace(run, runs_dir=runs)
        folder = RunFolder(run, prepared.fingerprint)
        folder.path.mkdir(parents=True)
        watch = _Stopwatch()
        checkpoints = Checkpoints(
            folder, every=run.trainer.checkpoint_every, evaluate_every=steps + 1, select_after=0
        )
        trainer = trainer_for(
            run,
            folder,
            checkpoints,
            watch,
            max_steps=steps,
            limit_val_batches=0,
            val_check_interval=None,
        )
        trainer.fit(build(run), _loader(run, prepared, steps))
    return watch.seconds


def _loading(run: Run, prepared: Any, steps: int) -> float:
    start = time.perf_counter()
    for _ in _loader(run, prepared, steps):
        pass
    return time.perf_counter() - start


def _startup(overrides: Sequence[str]) -> float:
    """Seconds from the shell to the line that reports the first step, as a user would see it."""
    with tempfile.TemporaryDirectory() as runs:
        command = [
            sys.executable, "-m", "lra", "train", *overrides, f"runs_dir={runs}", "compute=off",
            "trainer.progress=lines", "trainer.print_every=0",
        ]  # fmt: skip
        start = time.perf_counter()
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=parent.environment()
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("  step"):
                    seconds = time.perf_counter() - start
                    process.kill()
                    return seconds
    raise UserError(f"the run did not reach its first step: {' '.join(command)}")


def _write(run: Run, overrides: Sequence[str], figures: dict[str, str]) -> None:
    machine = environment.machine(torch.device("cpu"))
    facts = {
        "benchmark": f"lra bench train {' '.join(overrides)}".strip(),
        "task": run.task.name,
        "attention": run.attention,
        "batch": run.protocol.recipe.batch,
        "figures": figures,
        "machine": machine,
        "versions": environment.versions(),
        "git": environment.git(),
        "date": time.strftime("%Y-%m-%d"),
    }
    path = RESULTS / f"train-{run.task.name}-{run.attention['name']}-{machine['kind']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, facts)
    print(f"written to {path}")
