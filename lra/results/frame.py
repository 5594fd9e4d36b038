"""Records as a data frame: a line per run, a column per fact (docs/python.md).

Tables, figures and the page are made from it, and `lra.records(...).to_pandas()` gives it to
everybody. Whole numbers stay whole, and what a run lacks is None.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import pandas as pd

from lra.base import code
from lra.base.code import hash_parts
from lra.base.versions import ADDED, STACK
from lra.results.record import Record
from lra.runs.facts import find_fact, flat
from lra.runs.schema import TRAINING, all_columns
from lra.settings.own import spelt
from lra.settings.presets import AROUND, usual_options

# The columns that most questions need, which every record has, before those of single facts.
MAIN = (
    "kind",
    "task",
    "attention",
    "model",
    "protocol",
    "steps_share",
    "seed",
    "metric",
    "score",
    "floor",
    "loss",
    "steps",
    "parameters",
    "flops",
    "steps_per_second",
    "fingerprint",
    "code",
    "run",
    "path",
)
# Settings of the protocol that a record leaves out at their usual value.
LATER = {name: value for name, value in ADDED.items() if name.startswith("protocol.style.")}
CHOSEN = ("optimizer", "schedule", "callbacks")  # a word each, "none" for what the recipe has
# What the schema of records says of the facts that are shown otherwise than by their dotted name.
COLUMNS = all_columns()
RENAMED = {fact: column.name for fact, column in COLUMNS.items() if column.name}
NUMBERS = [column.name or fact for fact, column in COLUMNS.items() if column.number]
HIDDEN = {fact for fact, column in COLUMNS.items() if not column.shown}


class Records(list[Record]):
    """Finished runs as a list, and as a data frame."""

    def __repr__(self) -> str:
        return f"<{len(self)} records of finished runs; .to_pandas() makes a data frame of them>"

    def to_pandas(self) -> pd.DataFrame:
        """A line per run, a column per fact; the last column, `record`, holds the records."""
        return frame_of(self).infer_objects().copy()  # in one piece

    def _repr_html_(self) -> str:
        return str(self.to_pandas()[list(MAIN)]._repr_html_())


def frame_of(records: Sequence[Record]) -> pd.DataFrame:
    """Make the frame; its last column, `record`, holds the records themselves."""
    frame = pd.DataFrame([dict(_facts(r)) for r in records], dtype=object)
    frame = frame.reindex(columns=[*MAIN, *(c for c in frame if c not in (*MAIN, "record"))])
    frame = frame.where(frame.notna(), None)
    for name in NUMBERS:
        frame[name] = frame[name].astype(float) if name in frame else float("nan")
    frame["record"] = pd.Series(list(records), dtype=object)
    return frame


def _facts(record: Record) -> Iterator[tuple[str, Any]]:
    """Every fact under its dotted name, settings without `settings.` before it and the selected
    stage under `stage.`; then MAIN."""
    if record.kind == TRAINING:
        yield from LATER.items()
    shown = {key: value for key, value in record.facts.items() if key not in HIDDEN}
    for name, value in flat(shown | {"stage": record.stage}):
        if not _hidden(name):
            text = isinstance(value, list) and name != "curve"
            yield name.removeprefix("settings."), str(value) if text else value
    for option, value in options_of(record).items():
        if option == "layers" and record.attention == STACK:  # a conversion has another `layers`
            value = layers_in_words(record, value)
        yield f"attention.{option}", str(value) if isinstance(value, list) else value
    yield "pretrain.name", record.get("settings.pretrain.name", "none")
    yield "tune.name", record.get("settings.tune.name", "none")
    for fact in ("micro_batch", "checkpointing"):
        yield f"machine.{fact}", record.get(f"machine.{fact}") or "none"
    yield "micro_batch", record.get("settings.micro_batch") or "none"
    yield "processes", record.get("settings.processes") or "none"
    for name in CHOSEN:
        yield name, spelt(record.get(f"settings.{name}"))
    yield "task", record["task"]  # its name, not its settings
    for column in ("kind", "attention", "score", "floor", "revision", "run"):
        yield column, getattr(record, column)
    stage = {"stage": record.stage}
    for fact, column in RENAMED.items():
        yield column, find_fact(stage, fact) if fact.startswith("stage.") else record.get(fact)
    yield "code", record.version
    yield "code_of_training", _version_of_training(record)
    yield "source", record.code
    yield "path", str(record.path)


def _version_of_training(record: Record) -> str:
    """The version of the parts which all runs share, whatever they choose."""
    parts = record.get("code") or {}
    shared = {
        part: value
        for part, value in parts.items()
        if part != "the pretraining" and not part.startswith(code.CHOSEN)
    }
    return record.version if shared == parts or not record.version else hash_parts(shared)


@lru_cache(maxsize=4096)  # records have the same few hundred names
def _hidden(name: str) -> bool:
    """Whether a fact, of any stage, or a group that it is in, has no column."""
    if name.startswith("stages."):
        name = "stage." + name.split(".", 2)[2]
    return any(f"{name}.".startswith(f"{fact}.") for fact in HIDDEN)


def options_of(record: Record) -> dict[str, Any]:
    """Give the options of a run's attention; those that the record lacks as they usually are."""
    usual = usual_of(record) if record.kind == TRAINING else {}
    options = usual | record["attention"]
    return {key: value for key, value in options.items() if key != "name"}


def layers_in_words(record: Record, layers: list[dict[str, Any]]) -> str:
    """`3*gated_deltanet+softmax`, in parentheses the options of an entry that are unusual; without
    a space or a comma, at which `lra compare` takes its words apart."""
    named = []
    for entry in layers:
        task, protocol = record["settings.task.name"], record["protocol.name"]
        usual = AROUND | usual_options(entry["name"], task, protocol) | {"name": entry["name"]}
        unusual = [f"{key}={v}" for key, v in entry.items() if v != usual.get(key)]
        named.append(entry["name"] + f"({';'.join(unusual)})" * bool(unusual))
    groups = [(name, len([*group])) for name, group in itertools.groupby(named)]
    return "+".join(f"{n}*{name}" if n > 1 else name for name, n in groups)


def usual_of(record: Record) -> dict[str, Any]:
    """Give the options that `attention=<name>` sets on the run's task and protocol."""
    return usual_options(record.attention, record["settings.task.name"], record["protocol.name"])
