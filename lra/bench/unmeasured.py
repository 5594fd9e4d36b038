"""Runs of a plan that are not measured: on a device that is not there, or for want of time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from lra.base.errors import UserError
from lra.bench.estimate import devices, error_on, seconds_of, tasks_on
from lra.bench.run_group import RunGroup
from lra.compute.count import count_run
from lra.compute.traffic import bytes_of_step
from lra.data.prepare import find_prepared
from lra.settings.run import Run
from lra.training.trainer import check_device


def refuse_missing_devices(groups: Sequence[RunGroup]) -> None:
    """UserError at once for a device that is not there, with what works without it. Of several one
    is enough, for they are measured as one."""
    for group in groups:
        trainer = replace(group.run.trainer, devices=1, num_nodes=1)
        try:
            check_device(replace(group.run, trainer=trainer))
        except UserError as error:
            there = "; ".join(devices())
            raise UserError(f"{error}; --device NAME estimates instead, for: {there}") from error


def estimate(groups: Sequence[RunGroup], device: str) -> str:
    """Give each group without a measured step an estimate for this device, or, without a name, for
    this machine: then estimates for a known device are scaled by the steps that were measured.
    Returns the device whose known steps were used; empty where nothing was estimated."""
    rest = [group for group in groups if not (group.known or group.failed)]
    measured = [group for group in groups if group.timed]  # not those with a bound
    if not rest or not (device or measured):
        return ""
    on_gpu = groups[0].run.trainer.accelerator in ("gpu", "cuda")
    known = device or next(name for name in devices() if name.startswith("NVIDIA") == on_gpu)
    logs = [math.log(group.costs["step"] / estimated_step(group.run, known)) for group in measured]
    scale = math.exp(statistics.fmean(logs)) if logs else 1.0
    for group in rest:
        step = scale * estimated_step(group.run, known)
        length = group.run.protocol.data.max_length
        found = find_prepared(group.run.task, max_length=length, data_dir=group.run.data_dir)
        splits = found.facts["splits"] if found else {}
        sizes = {split: splits.get(split, {}).get("examples", 0) for split in ("val", "test")}
        # A forward pass is a third of a step.
        group.costs = {"start": 0.0, "step": step, "evaluation": step / 3} | sizes
        group.whole, group.estimated = False, True
    return known


def estimated_step(run: Run, device: str) -> float:
    flops = count_run(run).training_flops * run.protocol.recipe.batch / run.processes
    written = bytes_of_step(run) / run.processes
    return seconds_of(run.attention["name"], flops / 1e9, written / 1e9, device)


def about_estimates(
    groups: Sequence[RunGroup], device: str, price: float | None, *, hours: bool
) -> str:
    """How far they may be off, and where that is asked the hours of the device."""
    lines = [
        f"~ estimated by counted FLOPs and bytes from finished runs on {device} ({tasks_on(device)}"
        f"): each, estimated by those of other methods there, is within ×{error_on(device):.1f} in "
        "9 of 10; other tasks and precisions may be farther off"
    ]
    if hours:
        total = sum(g.left * g.seconds * g.run.processes for g in groups if g.known) / 3600
        cost = "" if price is None else f", at {price:g} an hour {total * price:.3g}"
        lines.append(
            f"~{total:.3g} hours of one {device}{cost}, for {sum(g.left for g in groups)} runs"
        )
    return "\n".join(lines)
