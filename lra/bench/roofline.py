"""How fast a training step could be on this device, and how long the device works in it.

A step takes at least the time of its matrix products at the speed of one large product, and at
least that of the bytes it has to move at the speed of one large copy (Williams et al. 2009).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile

from lra.bench.rows import BenchResult, ratio_by_round
from lra.bench.sheet import SheetTable, number, rounds_of, with_range
from lra.bench.worker import BenchMeter
from lra.compute.count import Count

SIDES = {"cpu": 2048, "cuda": 8192}  # of the matrices of the large product
COPIED = 2**29  # bytes of the large copy, more than caches hold
# How many times the bytes of the parameters a step moves: forward and backward pass read them, the
# second writes a gradient, and AdamW reads that, and reads and writes them and both moments.
STATE = 10
MEASURED = ("seconds", "busy_seconds", "product_seconds", "copy_seconds", "product_rate",
            "copy_rate")  # fmt: skip
NOTES = (
    "the device works: on a CPU the time of all threads, divided by their number; on a GPU the "
    "time in which kernels or copies run, from a second training under a profiler",
    "limit: the longer of two times, that of the step's matrix products, as the code does them, at "
    "the speed of one large product in this precision, and that of the bytes that the step moves "
    f"at the speed of one large copy. These are at least {STATE} times the parameters (read by "
    "both passes, gradients, AdamW) and twice what the forward keeps for the backward pass; where "
    "a cache holds them from one pass to the next, a step can be faster",
)


def copy_rate(meter: BenchMeter, size: int) -> float:
    """Bytes per second that a copy of this size reads and writes."""
    # Of ones, because pages that were never written need not be in memory.
    source, target = (torch.ones(size, dtype=torch.uint8, device=meter.device) for _ in range(2))
    return 2 * size / meter.seconds({"copy": lambda: target.copy_(source)})["copy"]


def product_rate(meter: BenchMeter, dtype: torch.dtype) -> float:
    """FLOPs per second of a large matrix product, with TF32 if torch may use it."""
    n = SIDES[meter.device.type]
    a, b = (torch.randn(n, n, device=meter.device).to(dtype) for _ in range(2))
    return 2 * n**3 / meter.seconds({"product": lambda: a @ b})["product"]


def step_flops(count: Count, batch: int) -> int:
    """FLOPs of the products of a step as the code does them. The compute gate counts some modules
    by their definition, and their backward pass twice: LUNA's networks, which only
    `evaluate=dense` computes as they are defined."""
    total = count.total
    return batch * (total.training_flops - 3 * (total.flops - total.executed_flops))


def kept_bytes(network: nn.Module, *inputs: Tensor | None) -> int:
    """Bytes that a forward pass keeps for the backward pass besides the parameters."""
    own = {p.untyped_storage().data_ptr() for p in network.parameters()}
    kept: dict[int, int] = {}

    def note(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return t

    with saved_tensors_hooks(note, lambda t: t):
        out = network.forward(*inputs)  # not compiled; its graph holds the storages
    del out
    return sum(size for address, size in kept.items() if address not in own)


class StepWatch(pl.Callback):
    """From the end of the first step to that of the last: seconds, and those in which the device
    works. On a GPU the latter take a profiler, which makes steps slower."""

    def __init__(self, steps: int, *, profiled: bool = False):
        self.steps, self.least_bytes = steps, 0
        self.ticks: list[tuple[float, float]] = []  # of the clock and of all threads
        self.profiler = profile(activities=[ProfilerActivity.CUDA]) if profiled else None

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, i: int) -> None:
        if i == 0:
            with trainer.precision_plugin.forward_context():
                kept = kept_bytes(module.network, batch.ids, batch.mask)
            self.least_bytes = STATE * sum(p.nbytes for p in module.parameters()) + 2 * kept

    def on_train_batch_end(self, trainer: Any, module: Any, out: Any, batch: Any, i: int) -> None:
        if i not in (0, self.steps):
            return
        if module.device.type == "cuda":
            torch.cuda.synchronize(module.device)
        self.ticks.append((time.perf_counter(), time.process_time()))
        if self.profiler:
            (self.profiler.stop if i else self.profiler.start)()

    def seconds(self) -> float:
        return self.ticks[1][0] - self.ticks[0][0]

    def busy_seconds(self) -> float:
        if self.profiler:
            trace: Any = self.profiler.profiler
            return covered(trace.kineto_results.events()) / 1e9
        return (self.ticks[1][1] - self.ticks[0][1]) / torch.get_num_threads()


def covered(events: Iterable[Any]) -> int:
    """Nanoseconds in which at least one of a profiler's events runs on a GPU."""
    end = total = 0
    on_gpu = (e for e in events if e.device_type().name == "CUDA" and not e.is_user_annotation())
    for start, length in sorted((e.start_ns(), e.duration_ns()) for e in on_gpu):
        total += max(0, start + length - max(start, end))
        end = max(end, start + length)
    return total


def tables(result: BenchResult, group: str, case: str) -> Iterator[SheetTable]:
    rows = {m: row for m in MEASURED for row in result.select(group, m).get(case, {}).values()}
    if not rows:  # a file of an older version
        return
    flops, step = result.cases[group, case]["step_flops"], rows["seconds"]
    limits = zip(rows["product_seconds"].values, rows["copy_seconds"].values, strict=True)
    shares = [max(both) / seconds for both, seconds in zip(limits, step.values, strict=True)]
    lines = [
        ["step, ms", rounds_of(step, ".2f", 1e3)],
        ["the device works, share of a step",
         with_range(ratio_by_round(rows["busy_seconds"], step), ".0%")],
        ["matrix products of a step, GFLOPs", number(flops / 1e9)],
        ["these per second, GFLOP/s", with_range([flops / s / 1e9 for s in step.values], ".1f")],
        ["a large product, GFLOP/s", rounds_of(rows["product_rate"], ".1f", 1e-9)],
        ["a large copy, GB/s", rounds_of(rows["copy_rate"], ".1f", 1e-9)],
        ["limit of the products, ms", rounds_of(rows["product_seconds"], ".2f", 1e3)],
        ["limit of the memory, ms", rounds_of(rows["copy_seconds"], ".2f", 1e3)],
        ["the longer limit / step", with_range(shares, ".0%")],
    ]  # fmt: skip
    yield SheetTable("A step of the framework and the limits of the device", ["", "measured"],
                     lines)  # fmt: skip
