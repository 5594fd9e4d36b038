"""`lra bench attention`: time, peak memory and FLOPs of every attention by length.

Every method is measured in a process of its own (lra/bench/worker.py), all of them once a round
(lra/bench/rounds.py). A length that is not measured says why in its cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import luna
from lra.bench import files, rounds, sheet


@dataclass(frozen=True, kw_only=True)
class Settings(rounds.Settings):
    heads: int
    head_dim: int


def attention(methods: Sequence[str] | None, settings: Settings, *, out: Path) -> None:
    chosen = [rounds.parse(word) for word in methods or [*luna.names(), "softmax@published"]]
    groups = {f"{name:<15} {profile:<9}": [(name, profile)] for name, profile in chosen}
    written: list[Path] = []
    for done, rows in rounds.rounds(groups, settings, partial(_run, settings)):
        written = write(rows, replace(settings, repeats=done), out)
    for path in written:
        print(f"written to {path}")


def _run(
    settings: Settings, todo: rounds.Todo, *, memory: bool
) -> Iterator[tuple[rounds.Cell, sheet.Row]]:
    for cell, lengths in todo.items():
        who = dict(zip(("method", "profile"), cell, strict=True))
        request = asdict(settings) | who | {"lengths": lengths, "memory": memory}
        rows, fate = rounds.ask("lra.bench.worker", request)
        for row in rounds.complete(rows, lengths, fate, cell[0]):
            yield cell, row | who | {"slowest_seconds": row.get("train_seconds")}


def write(rows: list[dict[str, Any]], settings: Settings, out: Path) -> list[Path]:
    """The tables as CSV, JSON and Markdown, and their picture where matplotlib is installed."""
    facts = files.facts("lra bench attention", settings, device=settings.device)
    stem = files.stem(out, "attention", facts)
    return [*sheet.write(rows, facts, stem), *files.picture("figure", rows, facts, stem)]
