"""`lra bench convert`: a converted model against its softmax original, by length.

Inference and a training step, time and peak memory. A process a pass measures the original and the
converted models in turn (lra/bench/convert_worker.py), once a round (lra/bench/rounds.py). What
converting a 12-layer model takes is measured beside it.
"""

from __future__ import annotations

import importlib.metadata
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from lra.bench import convert_sheet, files, rounds
from lra.bench.convert_host import GEOMETRIES, build
from lra.bench.convert_worker import ORIGINAL
from lra.bench.sheet import Row
from lra.config import UserError
from lra.disk import write_json
from luna.convert.host import transformers
from luna.convert.swap import convert, feature_parameters

METHODS = ("luna", "hedgehog", "t2r")
CONVERTED = "bert-base"  # the 12 layers that conversion is timed on
BESIDE = ("transformers", "numba")  # versions that matter here, where they are installed


@dataclass(frozen=True, kw_only=True)
class Settings(rounds.Settings):
    geometry: str
    passes: Sequence[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if GEOMETRIES[self.geometry].host == "vit" and min(self.lengths) < 2:
            raise UserError(
                f"--lengths of {self.geometry} must be at least 2, CLS and a patch, "
                f"got {min(self.lengths)}"
            )


def bench(methods: Sequence[str] | None, settings: Settings, out: Path) -> None:
    transformers()  # or what to install
    chosen = list(dict.fromkeys([ORIGINAL, *(rounds.parse(word) for word in methods or METHODS)]))
    conversions = convert_times(chosen[1:], settings)
    groups = {
        measured: [(measured, name, profile) for name, profile in chosen]
        for measured in settings.passes
    }
    written: list[Path] = []
    for done, rows in rounds.rounds(groups, settings, partial(_run, settings)):
        if not any("seconds" in row for row in rows):
            raise UserError(f"nothing was measured: {rows[0]['stopped']}")
        written = write(rows, conversions, replace(settings, repeats=done), out)
    print(convert_sheet.terminal(rows, conversions))
    for path in written:
        print(f"written to {path}")


def _run(
    settings: Settings, todo: rounds.Todo, *, memory: bool
) -> Iterator[tuple[rounds.Cell, Row]]:
    methods = [_who(cell) | {"lengths": lengths} for cell, lengths in todo.items()]
    geometry = asdict(GEOMETRIES[settings.geometry])
    request = asdict(settings) | {"geometry": geometry, "methods": methods, "memory": memory}
    rows, fate = rounds.ask("lra.bench.convert_worker", request)
    for cell, lengths in todo.items():
        who = _who(cell)
        own = [row for row in rows if who.items() <= row.items()]
        for row in rounds.complete(own, lengths, fate, cell[1]):
            yield cell, row | who | {"slowest_seconds": row.get("seconds")}


def _who(cell: rounds.Cell) -> dict[str, str]:
    return dict(zip(("measured", "method", "profile"), cell, strict=True))


def convert_times(methods: Sequence[tuple[str, str]], settings: Settings) -> list[Row]:
    """Seconds of `convert` on the CPU in every round, interleaved: the copy and the hash of the
    original's weights included."""
    geometry, before = GEOMETRIES[CONVERTED], torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    model = build(geometry, n=1)
    host = {
        "model": f"{CONVERTED}: {geometry.told}",
        "model_parameters": sum(p.numel() for p in model.parameters()),
    }
    rows: list[Row] = [
        host | {"method": name, "profile": profile, "seconds": []} for name, profile in methods
    ]
    try:
        for _ in range(settings.repeats):
            for row in rows:
                start = time.perf_counter()
                student = convert(model, row["method"], profile=row["profile"])
                row["seconds"].append(time.perf_counter() - start)
                row["parameters"] = sum(p.numel() for p in feature_parameters(student).values())
    finally:
        torch.set_num_threads(before)
    for row in rows:
        print(f"convert {row['method']:<10} {statistics.median(row['seconds']):.2f} s", flush=True)
    return rows


def write(rows: list[Row], conversions: list[Row], settings: Settings, out: Path) -> list[Path]:
    facts = files.facts("lra bench convert", settings, device=settings.device)
    facts["versions"] |= _beside()
    facts["geometry"] = asdict(GEOMETRIES[settings.geometry])
    facts["conversions"] = conversions
    stem = files.stem(out, f"convert-{settings.geometry}", facts)
    paths = [stem.parent / f"{stem.name}.{ending}" for ending in ("json", "md")]
    crossings = [asdict(found) for found in convert_sheet.break_evens(rows)]
    write_json(paths[0], facts | {"break_even": crossings, "rows": rows})
    paths[1].write_text(convert_sheet.markdown(rows, facts), encoding="utf-8")
    return [*paths, *files.picture("convert_figure", rows, facts, stem)]


def _beside() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for package in BESIDE:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found
