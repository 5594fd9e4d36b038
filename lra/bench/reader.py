"""Prepared data opened and read in a process of its own, on one core: `python -m lra.bench.reader
FOLDER BATCH SECONDS` prints one line of JSON."""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from lra.config import DataRules, Mask, Pad
from lra.data.arrays import Prepared
from lra.data.loader import Loader

OPENED = 5  # times, of which the median counts
WARM_UP = 20  # batches


def read(folder: Path, *, batch: int, seconds: float) -> dict[str, Any]:
    opening = []
    for _ in range(OPENED):
        start = time.perf_counter()
        prepared = Prepared.open(folder)
        opening.append(time.perf_counter() - start)
    split = prepared.split("train")
    mask = Mask.none if split.task.grid else Mask.length  # as protocol=luna
    rules = DataRules(split.width, split.width, Pad.full, mask, split.task.vocab)
    batches = iter(Loader(split, batch, rules=rules, steps=sys.maxsize))
    for _ in range(WARM_UP):
        next(batches)
    before, ids = _resident(), 0
    start = time.perf_counter()
    while (took := time.perf_counter() - start) < seconds:
        ids += next(batches).ids.numel()
    width = 1 if split.task.vocab <= 256 else 2  # bytes of a stored id
    return {
        "open_ms": statistics.median(opening) * 1e3,
        "stored_mb_per_s": ids * width / took / 1e6,
        "tensor_mb_per_s": ids * 8 / took / 1e6,
        "passes": ids / (len(split) * split.width * (1 + split.task.dual)),
        "resident_mib": _resident(),
        "growth_mib": _resident() - before,
    }


def _resident() -> float:
    """MiB of this process that are in memory now, files it has mapped included; the peak where
    the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
        return pages * resource.getpagesize() / 2**20
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**20 if sys.platform == "darwin" else 2**10)


def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    folder, batch, seconds = sys.argv[1:]
    print(json.dumps(read(Path(folder), batch=int(batch), seconds=float(seconds))))


if __name__ == "__main__":
    main()
