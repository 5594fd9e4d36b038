"""`lra bench train`: a training step of a run's settings without loading data, beside the roofline:
the products that one large matrix product does per second on this device."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import nn

from lra import data
from lra.base.config import Mask
from lra.bench.measure import Benchmark, Calls
from lra.bench.result import BenchRow
from lra.compute.count import count_run
from lra.data.loader import Batch
from lra.settings.compose import compose
from lra.settings.run import Run
from lra.training.optimizer import build_optimizer
from lra.training.run import build
from lra.training.schedule import build_schedule
from lra.training.trainer import DTYPES, MODES, TF32
from luna.base import Method

PRODUCT = "a large matrix product"
SIDES = {"cpu": 2048, "cuda": 8192}  # of its matrices


def train_benchmark(options: Namespace) -> Benchmark:
    words = [[*options.overrides, f"attention={name}"] for name in options.methods]
    runs = {run.attention["name"]: run for run in map(compose, words or [options.overrides])}
    run = next(iter(runs.values()))
    batch, n, precision = run.protocol.recipe.batch, run.protocol.data.pad_to, run.trainer.precision
    on_gpu = run.trainer.accelerator != "cpu" and torch.cuda.is_available()
    options.device, options.lengths = "cuda" if on_gpu else "cpu", [n]
    options.threads = run.trainer.threads or torch.get_num_threads()
    flops = {name: step_flops(run) for name, run in runs.items()}
    return Benchmark(
        stem=f"train-{run.task.name}-{'-'.join(runs)}"[:60],
        title=f"A training step of {run.task.name} and the roofline",
        notes=[
            f"batch {batch} of random ids at full length {n:,}, {precision}, no data loaded; "
            "products: the FLOPs of a step's matrix products, as the code does them",
            *(f"{name}: {count / 1e9:,.3g} GFLOPs a step" for name, count in flops.items()),
        ],
        cases={PRODUCT: partial(product_calls, precision)}
        | {name: partial(step_calls, run) for name, run in runs.items()},
        base=next(iter(runs)) if len(runs) > 1 else "",
        derive=partial(roofline, flops | {PRODUCT: 2 * SIDES[options.device] ** 3}),
    )


def roofline(flops: dict[str, int], rows: list[BenchRow]) -> list[BenchRow]:
    """Make rows of the products per second, as a share of those of the large product."""
    speeds = {
        row.case: [flops[row.case] / seconds for seconds in row.values]
        for row in rows
        if row.measure == "step_seconds" and row.values
    }
    best = speeds.pop(PRODUCT)
    n, shares = rows[0].n, {case: np.divide(speed, best) for case, speed in speeds.items()}
    return [
        BenchRow(group="train", case=case, n=n, measure="share", values=share.tolist())
        for case, share in shares.items()
    ]


def step_flops(run: Run) -> int:
    """FLOPs of the products of a step as the code does them. The compute gate counts some modules
    by their definition, and their backward pass twice: LUNA's networks, which only
    `evaluate=dense` computes as they are defined."""
    total = count_run(run)
    defined = 3 * (total.flops - total.executed_flops)
    return run.protocol.recipe.batch * (total.training_flops - defined)


def product_calls(precision: str, n: int, device: torch.device) -> Calls:
    dtype, side = DTYPES.get(precision.partition("-")[0], torch.float32), SIDES[device.type]
    a, b = torch.randn(2, side, side, device=device).to(dtype)
    return {"step": lambda: a @ b}


def step_calls(run: Run, n: int, device: torch.device) -> Calls:
    recipe, (number, _, kind) = run.protocol.recipe, run.trainer.precision.partition("-")
    torch.set_float32_matmul_precision("high" if number == TF32 else "highest")
    whole = replace(run.trainer, micro_batch=None)  # pieces are Lightning's
    dtype = DTYPES[number] if kind == "true" else None
    module = build(replace(run, trainer=whole)).to(device, dtype)
    attentions = [part for part in module.modules() if isinstance(part, Method)]
    fused = device.type == "cuda" and number != "16"
    optimizer = build_optimizer(module, recipe, fused=fused or None)
    scheduler = build_schedule(optimizer, recipe)
    if run.trainer.compile in MODES:
        module.network.compile(mode=MODES[run.trainer.compile])
    batch = random_batch(run, device)
    clip = getattr(nn.utils, f"clip_grad_{recipe.clip.name}_", None)  # norm or value

    def step() -> None:
        with torch.autocast(device.type, DTYPES.get(number), enabled=kind == "mixed"):
            loss = module.training_step(batch, 0)
        loss.backward()
        if clip:
            clip(module.parameters(), recipe.clip_at)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        for attention in attentions:
            attention.after_step()

    return {"step": step}


def random_batch(run: Run, device: torch.device, share: int = 1) -> Batch:
    """Make a batch, or a share of it, of texts at full length, (batch, n) or in pairs, or of tokens
    that are numbers."""
    task, rules, batch = data.of(run.task), run.protocol.data, run.protocol.recipe.batch // share
    shape = (batch, *((2,) if task.dual else ()), rules.pad_to)
    if task.channels:
        ids = torch.randn(*shape, task.channels, device=device)
    else:
        ids = torch.randint(1, task.vocab, shape, device=device)
    mask = None
    if rules.mask is not Mask.none:
        mask = torch.ones(shape, dtype=torch.bool, device=device)
    shape, _ = task.label_form(rules.pad_to)
    if task.asks != "classes":
        return Batch(ids, mask, torch.randint(2, (batch, *shape), device=device).float())
    return Batch(ids, mask, torch.randint(task.classes, (batch, *shape), device=device))
