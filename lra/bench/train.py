"""`lra bench train`: a training step of a run's settings without loading data, beside the roofline:
the products that one large matrix product does per second on this device."""

from __future__ import annotations

import contextlib
import math
from argparse import Namespace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra import data
from lra.base.config import Clip, Mask
from lra.bench.measure import BenchCase, Benchmark, Calls
from lra.bench.result import BenchRow
from lra.compute.count import Count, count_run
from lra.settings.compose import Run, compose
from lra.training import fit, optim
from lra.training.callbacks import MODES
from lra.training.trained import DTYPES
from luna.base import Attention

PRODUCT = "a large matrix product"
SIDES = {"cpu": 2048, "cuda": 8192}  # of its matrices


def benchmark(options: Namespace) -> Benchmark:
    words = [[*options.overrides, f"attention={name}"] for name in options.methods]
    runs = [(these, compose(these)) for these in words or [options.overrides]]
    run, steps = runs[0][1], {run.attention["name"]: these for these, run in runs}
    on_gpu = run.trainer.accelerator != "cpu" and torch.cuda.is_available()
    options.device, options.seconds, options.mib = "cuda" if on_gpu else "cpu", math.inf, math.inf
    options.threads = run.trainer.threads or torch.get_num_threads()
    batch, n = run.protocol.recipe.batch, run.protocol.data.pad_to
    flops = {name: step_flops(count_run(run), batch)
             for name, (_, run) in zip(steps, runs, strict=True)}  # fmt: skip
    large = BenchCase(name=PRODUCT, build=partial(product_calls, run.trainer.precision))
    return Benchmark(
        stem=f"train-{run.task.name}-{'-'.join(steps)}"[:60],
        title=f"A training step of {run.task.name} and the roofline",
        notes=[
            f"batch {batch} of random ids at full length {n:,}, {run.trainer.precision}, no data "
            "loaded; products: the FLOPs of a step's matrix products, as the code does them",
            *(f"{name}: {count / 1e9:,.3g} GFLOPs a step" for name, count in flops.items()),
        ],
        lengths=[n],
        cases=[large, *(BenchCase(name=name, build=partial(step_calls, these))
                        for name, these in steps.items())],
        base=next(iter(steps)) if len(steps) > 1 else "",
        derive=partial(roofline, flops | {PRODUCT: 2 * SIDES[options.device] ** 3}),
    )  # fmt: skip


def roofline(flops: dict[str, int], rows: list[BenchRow]) -> list[BenchRow]:
    """Make rows of the products per second, and of their share of those of the large product."""
    timed = [row for row in rows if row.measure == "step_seconds" and row.values]
    speeds = {row.case: [flops[row.case] / s for s in row.values] for row in timed}
    best = speeds.get(PRODUCT, [])
    shares = {case: [a / b for a, b in zip(speed, best, strict=False)]
              for case, speed in speeds.items() if case != PRODUCT}  # fmt: skip
    return [
        BenchRow(group="train", case=case, n=timed[0].n, measure=measure, values=values)
        for measure, by_case in {"speed": speeds, "share": shares}.items()
        for case, values in by_case.items()
    ]


def step_flops(count: Count, batch: int) -> int:
    """FLOPs of the products of a step as the code does them. The compute gate counts some modules
    by their definition, and their backward pass twice: LUNA's networks, which only
    `evaluate=dense` computes as they are defined."""
    total = count.total
    return batch * (total.training_flops - 3 * (total.flops - total.executed_flops))


def product_calls(precision: str, n: int, device: torch.device) -> Calls:
    dtype, side = DTYPES.get(precision.partition("-")[0], torch.float32), SIDES[device.type]
    a, b = torch.randn(2, side, side, device=device).to(dtype)
    return {"step": lambda: a @ b}


def step_calls(words: list[str], n: int, device: torch.device) -> Calls:
    run = compose(words)
    recipe, (number, _, kind) = run.protocol.recipe, run.trainer.precision.partition("-")
    torch.set_float32_matmul_precision("high" if number == fit.TF32 else "highest")
    network = fit.build(run).network.to(device, DTYPES[number] if kind == "true" else None)
    attentions = [module for module in network.modules() if isinstance(module, Attention)]
    fused = device.type == "cuda" and number != "16"
    optimizer, scheduler = optim.build_optimizer(network.parameters(), recipe, fused=fused or None)
    if run.trainer.compile in MODES:
        network.compile(mode=MODES[run.trainer.compile])
    ids, mask, labels = random_batch(run, device)
    clips: dict[Clip, Any] = {Clip.norm: nn.utils.clip_grad_norm_,
                              Clip.value: nn.utils.clip_grad_value_}  # fmt: skip

    def step() -> None:
        mixed = torch.autocast(device.type, DTYPES[number]) if kind == "mixed" else None
        with mixed or contextlib.nullcontext():
            loss = F.cross_entropy(network(ids, mask).flatten(0, -2), labels.flatten())
        loss.backward()
        if recipe.clip in clips:
            clips[recipe.clip](network.parameters(), recipe.clip_at)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        for attention in attentions:
            attention.after_step()

    return {"step": step}


def random_batch(run: Run, device: torch.device) -> tuple[Tensor, Tensor | None, Tensor]:
    """Make (ids, mask, labels) of texts at full length, (batch, n) or in pairs (batch, 2, n)."""
    task, rules, batch = data.of(run.task), run.protocol.data, run.protocol.recipe.batch
    shape = (batch, *((2,) if task.dual else ()), rules.pad_to)
    ids = torch.randint(1, task.vocab, shape, device=device)
    mask = None if rules.mask is Mask.none else torch.ones_like(ids, dtype=torch.bool)
    labels = (batch, rules.pad_to // task.stack) if task.per_token else (batch,)
    return ids, mask, torch.randint(task.classes, labels, device=device)
