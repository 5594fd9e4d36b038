"""A data card: where a task's data come from, what may be done with them, how they are split,
what is in them, and what is known to be wrong with them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lra.data import registry
from lra.data.arrays import QUANTILES, SPLITS
from lra.data.prepare import find_prepared, known_facts, prepare_command
from lra.data.task import Task, TaskOptions
from lra.data.verify import expected

WIDTH = 100  # columns of a line
LISTED = 16  # labels; the shares of more are not listed


def data_card(options: TaskOptions, *, max_length: int, data_dir: Path) -> str:
    """Write the card as Markdown, with the statistics of the prepared data or the committed
    ones."""
    task = registry.of(options)
    facts = known_facts(task, options, max_length)
    prepared = find_prepared(options, max_length=max_length, data_dir=data_dir)
    if prepared:
        counted = prepared.facts
        whose = f"Counted in {prepared.folder}, fingerprint {prepared.fingerprint}."
    else:
        counted = {key: part for entry in expected(facts) for key, part in entry.items()}
        todo = prepare_command(options, max_length=max_length, data_dir=data_dir)
        whose = f"Not prepared with these settings: `{todo}`."
        whose += " What follows is known of them." if counted else ""
    lines = [
        f"# {task.name}: {task.title}",
        "",
        *_fields(task, options, facts),
        "",
        *_wrapped(f"Splits: {task.about.splits}"),
        "",
        "## Statistics",
        "",
        *_wrapped(whose),
        *_statistics(task, counted),
        "",
        "## Known problems",
        "",
        *(line for problem in task.about.problems for line in _wrapped(f"- {problem}", "  ")),
    ]
    return "\n".join(lines)


def _fields(task: Task, options: TaskOptions, facts: dict[str, Any]) -> Iterator[str]:
    shape = f"at most {facts['width']:,} ids of {task.vocab:,}"
    if task.stack > 1:
        shape += f", {task.stack} per token"
    if task.grid:
        shape = f"{task.grid[0]} x {task.grid[1]} grey levels of {task.vocab}"
    settings = ", ".join(
        f"{key}={'null' if value is None else value}" for key, value in facts["options"].items()
    )
    versions = ", ".join(f"{key} {value}" for key, value in facts["versions"].items())
    for name, value in {
        "origin": task.about.origin,
        "licence": task.about.licence,
        "source": f"{options.source}: {facts['provenance']}",
        "options": settings or "none",
        "versions": versions or "none",
        "example": f"{'2 x ' if task.dual else ''}{shape}, one of {task.classes:,} labels"
        + (" per scored token" if task.per_token else ""),
    }.items():
        yield from _wrapped(f"- {name}: {value}", "  ")


def _statistics(task: Task, facts: dict[str, Any]) -> Iterator[str]:
    splits = facts.get("splits", {})
    if not splits:
        return
    parts = [splits.get(split, {}) for split in SPLITS]
    rows = {"examples": [part.get("examples") for part in parts]}
    for label in range(task.classes if task.classes <= LISTED else 0):
        rows[f"label {label}"] = [
            f"{part['labels'][label] / sum(part['labels']):.1%}" if "labels" in part else None
            for part in parts
        ]
    for quantile in QUANTILES if task.grid is None else ():
        rows[f"length, {quantile}"] = [part.get("lengths", {}).get(quantile) for part in parts]
    key, name = ("constant", "of one colour") if task.grid else ("truncated", "cut to that length")
    rows[name] = [part.get(key) for part in parts]
    yield from ("", _line("", *SPLITS), "|---|" + "---:|" * len(SPLITS))
    for name, cells in rows.items():
        if any(cell is not None for cell in cells):
            yield _line(name, *cells)
    if duplicates := facts.get("duplicates"):
        counts = ", ".join(f"{where} {count:,}" for where, count in duplicates.items())
        yield from ("", *_wrapped(f"Repeated examples, within and across splits: {counts}."))
    for reason, count in facts.get("notes", {}).items():
        yield from ("", f"{reason}: {count:,}")


def _line(*cells: Any) -> str:
    words = (f"{x:,}" if isinstance(x, int) else x or "" for x in cells)
    return f"| {' | '.join(words)} |"


def _wrapped(text: str, indent: str = "") -> Sequence[str]:
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
