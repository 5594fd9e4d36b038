"""`lra bench data`: what data cost. Drawing an image or an expression, preparing a task, opening
and reading what is prepared, and the memory that reading takes."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from lra import data, environment, parent
from lra.config import UserError
from lra.data import listops_generator, pathfinder_generator
from lra.data.arrays import Prepared
from lra.data.options import default_length
from lra.data.parallel import cores
from lra.data.prepare import prepare
from lra.disk import disk_errors, write_json

Row = dict[str, Any]

# Without other wishes: two sizes of one task, to see whether memory depends on it, and images.
PREPARED = (["listops"], ["listops", "n_train=10000"], ["pathfinder", "n=2000"])
BATCH = 32
# Milliseconds of the published program (drewlinsley/pathfinder at ab9c130c, SciPy 1.2.3) for an
# image with contours of 14 dashes, on one core of another machine.
PUBLISHED_MS = {32: 300, 64: 12_000, 128: 15_000, 256: 1_400}


def bench(
    wishes: Sequence[Sequence[str]], *, workers: int, seconds: float, repeats: int, out: Path
) -> list[Path]:
    """Measure, print and write. A wish is a task and its settings."""
    load = os.getloadavg()[0]
    drawn = _drawing(seconds, repeats)
    with tempfile.TemporaryDirectory() as folder:
        made = [
            (_told(wish), *_prepare(wish, workers, Path(folder))) for wish in wishes or PREPARED
        ]
        read = [_reading(prepared, seconds, repeats) for _, prepared, _ in made]
    rows = [
        {"data": name, "seconds": took, **_size(prepared), **measured}
        for (name, prepared, took), measured in zip(made, read, strict=True)
    ]
    machine = environment.machine(torch.device("cpu"))
    facts = {
        "benchmark": "lra bench data",
        "settings": {"workers": workers, "seconds": seconds, "repeats": repeats, "batch": BATCH},
        "machine": machine | {"cores": cores(), "load": round(load, 1)},
        "versions": environment.versions(),
        "git": environment.git(),
        "date": time.strftime("%Y-%m-%d"),
        "drawing": drawn,
        "prepared": rows,
    }
    text = markdown(facts)
    print(text)
    stem = f"data-{'-'.join(machine['device'].lower().split()[:2])}"
    paths = [out / f"{stem}.{ending}" for ending in ("json", "md")]
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        write_json(paths[0], facts)
        paths[1].write_text(text + "\n", encoding="utf-8")
    for path in paths:
        print(f"written to {path}")
    return paths


def _drawing(seconds: float, repeats: int) -> list[Row]:
    """Milliseconds for one image or expression on one core, the kinds taking turns."""
    kinds: dict[str, tuple[Callable[[], Any], float | None]] = {
        "ListOps expression": (_expressions().__next__, None)
    }
    for side in pathfinder_generator.SIZES:
        kinds[f"Pathfinder {side} x {side}"] = (_images(side).__next__, PUBLISHED_MS[side])
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for draw, _ in kinds.values():  # builds its tables
        draw()
    for _, (name, (draw, _)) in itertools.product(range(repeats), kinds.items()):
        times[name].append(_each(draw, seconds / repeats) * 1e3)
    return [
        {"kind": name, "ms": statistics.median(found), "lowest": min(found), "highest": max(found),
         "published_ms": kinds[name][1]}
        for name, found in times.items()
    ]  # fmt: skip


def _expressions() -> Iterator[Any]:
    options = data.configure("listops")
    names = ("min_length", "max_length", "max_depth", "max_args", "p_leaf")
    shape = listops_generator.Shape(**{name: getattr(options, name) for name in names})
    return listops_generator.generate(shape, seed=0)


def _images(side: int) -> Iterator[Any]:
    pathfinder = pathfinder_generator.Pathfinder(pathfinder_generator.settings(side))
    return (pathfinder.image(0, number) for number in itertools.count())


def _each(draw: Callable[[], Any], seconds: float) -> float:
    """Seconds that one takes, the mean over so many as fit."""
    start, count = time.perf_counter(), 0
    while (took := time.perf_counter() - start) < seconds or count == 0:
        draw()
        count += 1
    return took / count


def _told(wish: Sequence[str]) -> str:
    """Where data lie is nobody's business."""
    return " ".join(word for word in wish if not word.startswith("path="))


def _prepare(wish: Sequence[str], workers: int, folder: Path) -> tuple[Prepared, float]:
    task, *settings = wish
    options = data.configure(task, settings)
    length = default_length(data.get(task))
    start = time.perf_counter()
    prepared = prepare(options, max_length=length, data_dir=folder, workers=workers)
    return prepared, time.perf_counter() - start


def _size(prepared: Prepared) -> Row:
    facts = prepared.facts
    return {
        "provenance": facts["provenance"],
        "examples": sum(split["examples"] for split in facts["splits"].values()),
        "width": facts["width"],
        "mb": sum(array["bytes"] for array in facts["arrays"].values()) / 1e6,
    }


def _reading(prepared: Prepared, seconds: float, repeats: int) -> Row:
    """Medians over processes of their own."""
    command = [sys.executable, "-m", "lra.bench.reader", str(prepared.folder), str(BATCH)]
    found = []
    for _ in range(repeats):
        done = subprocess.run(
            [*command, str(seconds / repeats)],
            capture_output=True,
            text=True,
            env=parent.environment(),
            check=False,
        )
        if done.returncode:
            raise UserError(f"{prepared.folder} could not be read: {done.stderr.strip()}")
        found.append(json.loads(done.stdout))
    return {key: statistics.median(one[key] for one in found) for key in found[0]}


def markdown(facts: Row) -> str:
    machine, versions, settings = facts["machine"], facts["versions"], facts["settings"]
    lines = [
        "# What data cost",
        "",
        f"- machine: {machine['device']}, {machine['system']}; "
        f"python {versions['python']}, numpy {versions['numpy']}, torch {versions['torch']}, "
        f"luna-lra {versions['luna-lra']}, {facts['date']}; {machine['cores']} cores, on which "
        f"{machine['load']:g} other processes were running",
        f"- medians of {settings['repeats']} rounds; drawing and reading on one core, preparing "
        f"with {settings['workers']} worker processes",
        f"- reading: training batches of {settings['batch']}, shuffled, padded, texts with masks, "
        "from the page cache; MB of ids as they are stored, and as int64 tensors",
        "- resident: of a process that has torch and reads; growth: since the first batches",
        "- the published program was timed on another machine: an order of magnitude",
        "",
        "`lra bench data` makes this file.",
        "",
        "| drawing | ms each | rounds | times faster than published |",
        "|---|---:|---:|---:|",
    ]
    for row in facts["drawing"]:
        faster = f"{row['published_ms'] / row['ms']:,.0f}" if row["published_ms"] else ""
        lines.append(
            f"| {row['kind']} | {row['ms']:.3g} | {row['lowest']:.3g} .. {row['highest']:.3g} "
            f"| {faster} |"
        )
    lines += [
        "",
        "| data | examples | MB | prepared in, s | opened in, ms | stored MB/s | tensor MB/s "
        "| resident, MiB | growth, MiB | passes |",
        "|---|" + "---:|" * 9,
    ]
    for row in facts["prepared"]:
        lines.append(
            f"| {row['data']} ({row['provenance']}) | {row['examples']:,} | {row['mb']:,.1f} "
            f"| {row['seconds']:.1f} | {row['open_ms']:.1f} | {row['stored_mb_per_s']:,.0f} "
            f"| {row['tensor_mb_per_s']:,.0f} | {row['resident_mib']:,.0f} "
            f"| {row['growth_mib']:,.1f} | {row['passes']:,.1f} |"
        )
    return "\n".join(lines)
