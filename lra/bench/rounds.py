"""Methods measured in processes, all of them once a round: what else the machine does meets them
alike, and of the rounds the fastest counts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

import luna
from lra import parent
from lra.bench.sheet import Row
from lra.config import UserError

PATIENCE = 100  # times `seconds` in all, after which a process is taken for stuck
Cell = tuple[str, ...]  # what is measured: a method, its profile, ...
Todo = dict[Cell, list[int]]  # lengths


@dataclass(frozen=True, kw_only=True)
class Settings:
    lengths: Sequence[int]
    repeats: int
    threads: int
    batch: int
    device: str
    seconds: float  # one pass
    mib: float

    def __post_init__(self) -> None:
        for key, value in asdict(self).items():
            if isinstance(value, int | float) and value <= 0:
                flag = key.replace("_", "-")
                raise UserError(f"--{flag} must be greater than 0, got {value}")
        if min(self.lengths) < 1:
            raise UserError(f"--lengths must be at least 1, got {min(self.lengths)}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device cuda: torch sees no GPU here; leave it out to measure a CPU")


def parse(word: str) -> tuple[str, str]:
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


def rounds(
    groups: Mapping[str, Sequence[Cell]],
    settings: Settings,
    measure: Callable[..., Iterable[tuple[Cell, Row]]],
) -> Iterator[tuple[int, list[Row]]]:
    """After every round its number and all rows: an interrupted benchmark has those it finished.

    measure(todo, memory=...) gives a row for every length of every cell of a group; it is not asked
    again for what was stopped, and for memory only once.
    """
    rows: dict[tuple[Cell, int], Row] = {}
    for repeat in range(settings.repeats):
        for name, cells in groups.items():
            todo = {
                cell: [
                    n for n in sorted(set(settings.lengths))
                    if repeat == 0 or not rows[cell, n]["stopped"]
                ]
                for cell in cells
            }  # fmt: skip
            start = time.perf_counter()
            for cell, found in measure(todo, memory=repeat == 0):
                key = (cell, found["n"])
                rows[key] = faster(rows[key], found) if repeat else found
            seconds = time.perf_counter() - start
            print(f"round {repeat + 1}/{settings.repeats}  {name}  {seconds:.0f} s", flush=True)
        yield repeat + 1, list(rows.values())


def ask(module: str, request: dict[str, Any]) -> tuple[list[Row], str]:
    """The rows that a process printed, and what became of it, where they are not all."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, json.dumps(request)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=parent.environment(),
    )
    try:
        output, errors = process.communicate(timeout=PATIENCE * request["seconds"])
        fate = _last_line(errors) if process.returncode > 0 else "killed"
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        fate = "stuck"
    return [json.loads(line) for line in output.splitlines()], fate


def complete(rows: list[Row], lengths: list[int], fate: str, name: str) -> list[Row]:
    """A row for every length, whatever became of the process."""
    missing = lengths[len(rows) :]
    if missing:
        print(f"{name}: {fate} at n={missing[0]}", file=sys.stderr)
    return rows + [{"n": n, "flops": None, "stopped": fate} for n in missing]


def _last_line(errors: str) -> str:
    lines = errors.strip().splitlines()
    return lines[-1] if lines else "failed"


def faster(old: Row, new: Row) -> Row:
    """Of two rounds the faster times; the slowest one tells how noisy the machine was."""
    if new["stopped"]:
        return old
    slowest = max(old["slowest_seconds"], new["slowest_seconds"])
    least = {key: min(old[key], new[key]) for key in old if key.endswith("seconds")}
    return old | least | {"slowest_seconds": slowest}
