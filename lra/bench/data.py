"""`lra bench data`: the cost of data: generating images and expressions, preparing a task, opening
and reading prepared data, and the memory that reading takes."""

from __future__ import annotations

import itertools
import math
import os
import resource
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from lra import data, environment
from lra.bench.rows import BenchResult, median
from lra.bench.sheet import Benchmark, SheetTable, number, rounds_of
from lra.bench.worker import BenchCase, BenchMeter, BenchRules
from lra.config import DataRules, Mask, Pad
from lra.data.listops import generator as listops_generator
from lra.data.loader import Loader
from lra.data.options import default_length
from lra.data.pathfinder import generator as pathfinder_generator
from lra.data.prepare import load, prepare

# The default: two sizes of one task, to see whether memory depends on the size, and images.
PREPARED = (["listops"], ["listops", "n_train=10000"], ["pathfinder", "n=2000"])
BATCH = 32
OPENED = 5  # times that data are opened; the median counts
WARM_UP = 20  # batches
# Milliseconds of the published program (drewlinsley/pathfinder at ab9c130c, SciPy 1.2.3) for an
# image with contours of 14 dashes, on one core of another machine.
PUBLISHED_MS = {32: 300, 64: 12_000, 128: 15_000, 256: 1_400}
DRAWING, READING = "drawing", "prepared data"
COLUMNS = {  # measure of a reading: title
    "open_ms": "opened in, ms",
    "stored_mb_per_s": "stored MB/s",
    "tensor_mb_per_s": "tensor MB/s",
    "resident_mib": "resident, MiB",
    "growth_mib": "growth, MiB",
    "passes": "passes",
}

NOTES = (
    "medians of {} rounds; generating and reading on one core, preparing with {} workers",
    f"reading: shuffled training batches of {BATCH}, padded, with masks for texts, from the page "
    "cache; MB/s of ids as they are stored, and as int64 tensors",
    "resident: memory of the reading process, torch included; growth: since the first batches",
    "the published program was timed on another machine, so that ratio is an order of magnitude",
)


def benchmark(options: Namespace) -> Benchmark:
    asked = options.prepare or PREPARED
    for task, *settings in asked:  # mistakes show before anything is prepared
        data.configure(task, settings)
    seconds = options.seconds / options.rounds
    sides: dict[str, int | None] = {"ListOps expression": None}
    sides |= {f"Pathfinder {side} x {side}": side for side in pathfinder_generator.SIZES}
    drawing = [
        DrawingCase(group=DRAWING, name=name, side=side, seconds=seconds,
                    facts={"published_ms": PUBLISHED_MS[side] if side else None})
        for name, side in sides.items()
    ]  # fmt: skip
    folder = tempfile.TemporaryDirectory()
    reading = [_prepare(words, options.workers, Path(folder.name), seconds) for words in asked]
    return Benchmark(
        stem="data",
        title="What data cost",
        notes=[NOTES[0].format(options.rounds, options.workers), *NOTES[1:]],
        cases=[*drawing, *reading],
        rules=BenchRules.of(options, threads=1, seconds=math.inf),
        settings={"batch": BATCH},
        folder=folder,
    )


# ---------------------------------------------------------------------- cases


@dataclass(frozen=True, kw_only=True)
class DrawingCase(BenchCase):
    """Seconds per image or, without a side, per expression: the mean of many, as they differ."""

    side: int | None
    seconds: float  # per round

    def costs(self, n: int, meter: BenchMeter) -> dict[str, float]:
        drawn = _images(self.side) if self.side else _expressions()
        next(drawn)  # builds its tables
        start, count = time.perf_counter(), 0
        while (took := time.perf_counter() - start) < self.seconds or count == 0:
            next(drawn)
            count += 1
        return {"seconds": took / count}


def _expressions() -> Iterator[Any]:
    options = data.configure("listops")
    names = ("min_length", "max_length", "max_depth", "max_args", "p_leaf")
    shape = listops_generator.TreeShape(**{name: getattr(options, name) for name in names})
    return listops_generator.generate(shape, seed=0)


def _images(side: int) -> Iterator[Any]:
    pathfinder = pathfinder_generator.ImageGenerator(pathfinder_generator.settings(side))
    return (pathfinder.image(0, number) for number in itertools.count())


@dataclass(frozen=True, kw_only=True)
class ReadingCase(BenchCase):
    """Prepared data opened and read by a separate process, on one core."""

    warm_up: ClassVar[bool] = False

    folder: Path
    seconds: float

    def costs(self, n: int, meter: BenchMeter) -> dict[str, float]:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        return read(self.folder, seconds=self.seconds)


def read(folder: Path, *, seconds: float) -> dict[str, float]:
    opening = []
    for _ in range(OPENED):
        start = time.perf_counter()
        prepared = load(folder)
        opening.append(time.perf_counter() - start)
    split = prepared.split("train")
    mask = Mask.none if split.layout.grid else Mask.length  # as protocol=luna
    rules = DataRules(split.width, split.width, Pad.full, mask, split.layout.vocab)
    batches = iter(Loader(split, BATCH, rules=rules, steps=sys.maxsize))
    for _ in range(WARM_UP):
        next(batches)
    before, ids = _resident(), 0
    start = time.perf_counter()
    while (took := time.perf_counter() - start) < seconds:
        ids += next(batches).ids.numel()
    width = 1 if split.layout.vocab <= 256 else 2  # bytes of a stored id
    return {
        "open_ms": statistics.median(opening) * 1e3,
        "stored_mb_per_s": ids * width / took / 1e6,
        "tensor_mb_per_s": ids * 8 / took / 1e6,
        "resident_mib": _resident(),
        "growth_mib": _resident() - before,
        "passes": ids / (len(split) * split.width * (1 + split.layout.dual)),
    }


def _resident() -> float:
    """MiB of this process that are in memory now, mapped files included; the peak where the system
    does not report this."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
        return pages * resource.getpagesize() / 2**20
    except OSError:
        return environment.peak_memory_mib(torch.device("cpu"))


def _prepare(words: Sequence[str], workers: int, folder: Path, seconds: float) -> ReadingCase:
    task, *settings = words
    length = default_length(data.get(task))
    start = time.perf_counter()
    prepared = prepare(
        data.configure(task, settings), max_length=length, data_dir=folder, workers=workers
    )
    took, facts = time.perf_counter() - start, prepared.facts
    # The page must not show paths of this machine.
    name = " ".join(word for word in words if not word.startswith("path="))
    print(f"prepared {name} in {took:.1f} s", flush=True)
    return ReadingCase(
        group=READING, name=name, alone=True, folder=prepared.folder, seconds=seconds,
        facts={
            "provenance": facts["provenance"],
            "examples": sum(split["examples"] for split in facts["splits"].values()),
            "width": facts["width"],
            "mb": sum(array["bytes"] for array in facts["arrays"].values()) / 1e6,
            "prepare_seconds": took,
        },
    )  # fmt: skip


# ---------------------------------------------------------------------- tables


def tables(result: BenchResult) -> Iterator[SheetTable]:
    drawing = result.select(DRAWING, "seconds")
    lines: list[list[str]] = []
    for case, drawn in drawing.items():
        published = result.cases[DRAWING, case]["published_ms"]
        timed = published and drawn[0].values
        faster = f"{published / 1e3 / median(drawn[0]):,.0f}" if timed else ""
        lines.append([case, rounds_of(drawn[0], ".3g", 1e3), faster])
    yield SheetTable("Drawing", ["", "ms each", "times faster than published"], lines)

    head = ["", "examples", "MB", "prepared in, s", *COLUMNS.values()]
    reading = {measure: result.select(READING, measure) for measure in COLUMNS}
    lines = []
    for (group, case), facts in result.cases.items():
        if group == READING:
            rows = [found[case][0] for found in reading.values()]
            lines.append([
                f"{case} ({facts['provenance']})", f"{facts['examples']:,}",
                f"{facts['mb']:,.1f}", f"{facts['prepare_seconds']:.1f}",
                *(number(median(row)) if row.values else str(row.stopped) for row in rows),
            ])  # fmt: skip
    yield SheetTable("Preparing, opening and reading", head, lines)
