"""`lra bench attention`: time, peak memory and FLOPs of every attention by length.

Every method is measured in a process of its own (lra/bench/worker.py), all of them once a round:
what else the machine does meets them alike, and of the rounds the fastest counts. A length that is
not measured says why in its cell.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import luna
from lra import environment
from lra.bench import sheet
from lra.config import UserError

PATIENCE = 100  # times `seconds` in all, after which a process is taken for stuck


@dataclass(frozen=True, kw_only=True)
class Settings:
    lengths: Sequence[int]
    repeats: int
    threads: int
    batch: int
    heads: int
    head_dim: int
    device: str
    seconds: float  # one forward and backward pass
    mib: float

    def __post_init__(self) -> None:
        for key in ("repeats", "threads", "batch", "heads", "head_dim", "seconds", "mib"):
            if getattr(self, key) <= 0:
                flag = key.replace("_", "-")
                raise UserError(f"--{flag} must be greater than 0, got {getattr(self, key)}")
        if min(self.lengths) < 1:
            raise UserError(f"--lengths must be at least 1, got {min(self.lengths)}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device cuda: torch sees no GPU here; leave it out to measure a CPU")


def attention(methods: Sequence[str] | None, settings: Settings, *, out: Path) -> None:
    chosen = [_parse(word) for word in methods or [*luna.names(), "softmax@published"]]
    rows: dict[tuple[str, str, int], dict[str, Any]] = {}
    written: list[Path] = []
    for repeat in range(settings.repeats):
        for name, profile in chosen:
            start = time.perf_counter()
            lengths = [
                n for n in sorted(set(settings.lengths))
                if repeat == 0 or not rows[name, profile, n]["stopped"]
            ]  # fmt: skip
            for found in _run(name, profile, lengths, settings, memory=repeat == 0):
                key = (name, profile, found["n"])
                rows[key] = _faster(rows[key], found) if repeat else found
                rows[key] |= {"method": name, "profile": profile}
            seconds = time.perf_counter() - start
            print(f"round {repeat + 1}/{settings.repeats}  {name:<15} {profile:<9} {seconds:.0f} s",
                  flush=True)  # fmt: skip
        # After every round: an interrupted benchmark has those it finished.
        written = write(list(rows.values()), replace(settings, repeats=repeat + 1), out)
    for path in written:
        print(f"written to {path}")


def _parse(word: str) -> tuple[str, str]:
    """(name, profile) of `name` or `name@profile`."""
    name, _, profile = word.partition("@")
    cls = luna.get(name)
    wanted = profile or "strict"
    if cls.effective_profile(wanted) != wanted:
        raise UserError(
            f"attention '{name}' does not differ under profile {profile}; it has profiles "
            f"{', '.join(cls.profiles)}"
        )
    return name, wanted


def _run(
    name: str, profile: str, lengths: list[int], settings: Settings, *, memory: bool
) -> list[dict[str, Any]]:
    """A row for every length, whatever becomes of the process."""
    request = asdict(settings) | {
        "method": name, "profile": profile, "lengths": lengths, "memory": memory,
    }  # fmt: skip
    command = [sys.executable, "-m", "lra.bench.worker", json.dumps(request)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=environment.REPOSITORY,
    )
    try:
        output, errors = process.communicate(timeout=PATIENCE * settings.seconds)
        fate = _last_line(errors) if process.returncode > 0 else "killed"
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        fate = "stuck"
    rows = [json.loads(line) for line in output.splitlines()]
    for row in rows:
        row["slowest_seconds"] = row.get("train_seconds")
    if len(rows) < len(lengths):
        print(f"{name}: {fate} at n={lengths[len(rows)]}", file=sys.stderr)
    return rows + [{"n": n, "flops": None, "stopped": fate} for n in lengths[len(rows) :]]


def _last_line(errors: str) -> str:
    lines = errors.strip().splitlines()
    return lines[-1] if lines else "failed"


def _faster(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Of two rounds the faster times; the slowest one tells how noisy the machine was."""
    if new["stopped"]:
        return old
    timed = ("forward_seconds", "train_seconds", "plain_seconds")
    least = {key: min(old[key], new[key]) for key in timed if key in old}
    return old | least | {"slowest_seconds": max(old["slowest_seconds"], new["train_seconds"])}


def write(rows: list[dict[str, Any]], settings: Settings, out: Path) -> list[Path]:
    """The tables as CSV, JSON and Markdown, and their picture where matplotlib is installed."""
    machine = environment.machine(torch.device(settings.device))
    if settings.device == "cpu":
        machine["threads"] = settings.threads
    facts = {
        "benchmark": "lra bench attention",
        "settings": asdict(settings) | {"lengths": sorted(set(settings.lengths))},
        "machine": machine,
        "versions": environment.versions(),
        "git": environment.git(),
        "date": time.strftime("%Y-%m-%d"),
    }
    device = re.sub(r"[^a-z0-9]+", "-", machine["device"].lower()).strip("-")
    threads = f"-{settings.threads}thread" if settings.device == "cpu" else ""
    stem = f"attention-{device}{threads}-torch{torch.__version__.partition('+')[0]}"
    out.mkdir(parents=True, exist_ok=True)
    written = sheet.write(rows, facts, out / stem)
    try:
        from lra.bench import figure
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        print("no picture: matplotlib is not installed (pip install 'luna-lra[plots]')")
        return written
    return [*written, *figure.draw(rows, facts, out / stem)]
