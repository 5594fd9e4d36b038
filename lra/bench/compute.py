"""`lra bench compute`: time and peak memory of a training step beside its counted FLOPs.

FLOPs are what compute is matched by, and not what a machine takes its time for. Every attention is
measured at the setting its file ships, on the same backbone and batch, in a process of its own
(lra/bench/step.py), all of them once a round; of the rounds the fastest counts, and the slowest
tells how noisy the machine was.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import luna
from lra import parent
from lra.bench import files
from lra.compose import compose
from lra.compute.budget import budget_of, cost_of, times
from lra.compute.count import count_run
from lra.config import UserError
from lra.disk import write_json
from lra.report.leaderboard import compute_class


@dataclass(frozen=True, kw_only=True)
class Settings:
    batch: int
    steps: int
    repeats: int
    threads: int
    device: str
    timeout: float  # seconds for one process

    def __post_init__(self) -> None:
        for key, value in asdict(self).items():
            if key != "device" and value <= 0:
                raise UserError(f"--{key} must be greater than 0, got {value}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device cuda: torch sees no GPU here; leave it out to measure a CPU")


def bench(
    overrides: Sequence[str], methods: Sequence[str] | None, settings: Settings, out: Path
) -> None:
    words = [*overrides, f"protocol.recipe.batch={settings.batch}", "compute=report"]
    rows = {name: _counted(name, words) for name in methods or luna.names()}
    for repeat in range(settings.repeats):
        for name, row in rows.items():
            if row["stopped"] is None:
                _measure(row, [*words, f"attention={name}"], settings, memory=repeat == 0)
            print(f"round {repeat + 1}/{settings.repeats}  {_told(row)}", flush=True)
    for path in write(list(rows.values()), overrides, settings, out):
        print(f"written to {path}")


def _counted(name: str, words: Sequence[str]) -> dict[str, Any]:
    """What a step of this attention costs by the count."""
    run = compose([*words, f"attention={name}"])
    count, budget = count_run(run), budget_of(run)
    sizes = replace(cost_of(run, count), examples=None)  # some steps are no training
    ratios, batch = budget.ratios(sizes), run.protocol.recipe.batch
    return {
        "attention": name,
        "task": run.task.name,
        "n": run.protocol.data.pad_to,
        "batch": batch,
        "parameters": count.parameters,
        "step_flops": batch * count.total.training_flops,
        "flops_ratio": ratios.get("flops"),
        "flops_tolerance": run.compute.tolerance.flops,
        "verdict": budget.verdict(ratios),
        "exempt": run.compute.exempt,
        "seconds": None,
        "slowest_seconds": None,
        "peak_bytes": None,
        "stopped": None,
    }


def _measure(
    row: dict[str, Any], overrides: list[str], settings: Settings, *, memory: bool
) -> None:
    request = asdict(settings) | {"overrides": overrides, "memory": memory}
    command = [sys.executable, "-m", "lra.bench.step", json.dumps(request)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=parent.environment(),
            timeout=settings.timeout,
        )
    except subprocess.TimeoutExpired:
        row["stopped"] = f"> {settings.timeout:g} s"
        return
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        row["stopped"] = lines[-1] if done.returncode > 0 and lines else "killed"
        return
    found = json.loads(done.stdout.splitlines()[-1])
    seconds = found.pop("seconds")
    row["seconds"] = min(seconds, row["seconds"] or seconds)
    row["slowest_seconds"] = max(seconds, row["slowest_seconds"] or seconds)
    row |= found


def _told(row: dict[str, Any]) -> str:
    name = f"{row['attention']:<15}"
    if row["stopped"]:
        return f"{name} {row['stopped']}"
    return (
        f"{name} {row['seconds'] * 1e3:8.1f} ms  {row['step_flops'] / 1e9:8.2f} GFLOPs  "
        f"{row['peak_bytes'] / 2**20:7.1f} MiB"
    )


def write(
    rows: list[dict[str, Any]], overrides: Sequence[str], settings: Settings, out: Path
) -> list[Path]:
    """The measurements as JSON, CSV and Markdown, and their picture where matplotlib is there."""
    benchmark = f"lra bench compute {' '.join(overrides)}".strip()
    facts = files.facts(benchmark, settings, device=settings.device)
    stem = files.stem(out, f"bench-{rows[0]['task']}", facts, threads=False)
    paths = [stem.parent / f"{stem.name}.{ending}" for ending in ("json", "csv", "md")]
    write_json(paths[0], facts | {"rows": rows})
    with paths[1].open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    paths[2].write_text(markdown(rows, facts), encoding="utf-8")
    return paths + files.picture("scatter", rows, facts, stem)


def markdown(rows: list[dict[str, Any]], facts: dict[str, Any]) -> str:
    settings, machine = facts["settings"], facts["machine"]
    lines = [
        f"# A training step, counted and measured: {rows[0]['task']}",
        "",
        f"Made by `{facts['benchmark']}` on {facts['date']}; do not edit. {machine['device']}, "
        f"{machine['threads']} thread(s), torch {facts['versions']['torch']}, batch "
        f"{settings['batch']} of n = {rows[0]['n']:,}. Of {settings['repeats']} interleaved rounds "
        f"of {settings['steps']} steps the fastest median; in brackets the slowest over it.",
        "",
        "| attention | compute | step, GFLOPs | × of the budget | step, ms | GFLOP/s | peak, MiB |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in sorted(rows, key=lambda r: r["seconds"] or float("inf")):
        cells = [f"`{row['attention']}`", compute_class(row)]
        cells.append(f"{row['step_flops'] / 1e9:,.2f}")
        cells.append(times(row["flops_ratio"]) if row["flops_ratio"] else "")
        if row["stopped"]:
            cells += [row["stopped"], "", ""]
        else:
            noise = row["slowest_seconds"] / row["seconds"]
            cells.append(f"{row['seconds'] * 1e3:,.1f} ({times(noise)})")
            cells.append(f"{row['step_flops'] / row['seconds'] / 1e9:,.1f}")
            cells.append(f"{row['peak_bytes'] / 2**20:,.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
