"""What a step of training took in finished runs, by method and device: times.csv."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("times.csv")


@dataclass(frozen=True)
class Work:
    """What decides most of what a step costs."""

    task: str
    protocol: str
    attention: str
    layers: int
    width: int  # of the model
    batch: int


@dataclass(frozen=True)
class Times:
    """Seconds of a step in some runs of the same work, whose options may differ."""

    device: str
    threads: int
    runs: int
    least: float
    median: float
    most: float
    gflops: float  # of a step, forward and backward
    gbytes: float  # that its operators write

    @property
    def place(self) -> str:
        """`AMD EPYC, 1 thread`; a GPU has no threads that count."""
        if self.device.startswith("NVIDIA"):
            return self.device
        return f"{self.device}, {self.threads} thread{'s' * (self.threads != 1)}"


@cache
def known() -> dict[Work, list[Times]]:
    """All that the file has."""
    found = dict[Work, list[Times]]()
    with FILE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(_work(row), []).append(_times(row))
    return found


def times_of(work: Work) -> Sequence[Times]:
    """What is known of this work, for each device; nothing, where nobody measured it."""
    return known().get(work, [])


def _work(row: Mapping[str, str]) -> Work:
    return Work(
        task=row["task"],
        protocol=row["protocol"],
        attention=row["attention"],
        layers=int(row["layers"]),
        width=int(row["width"]),
        batch=int(row["batch"]),
    )


def _times(row: Mapping[str, str]) -> Times:
    return Times(
        device=row["device"],
        threads=int(row["threads"]),
        runs=int(row["runs"]),
        least=float(row["least"]),
        median=float(row["median"]),
        most=float(row["most"]),
        gflops=float(row["gflops"]),
        gbytes=float(row["gbytes"]),
    )
