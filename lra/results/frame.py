"""Records as a data frame: a line per run, a column per fact (docs/columns.md).

Tables, figures and the page are made from it, and `lra.records(...).to_pandas()` gives it to
everybody. Whole numbers stay whole, and what a run lacks is None.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from lra.base import code
from lra.base.code import PRETRAINING, hash_parts
from lra.results.record import Record
from lra.runs.schema import TRAINING, flat
from lra.settings.own import spelt
from lra.settings.presets import later_options, usual_options

# The columns that most questions need, which every record has, before those of single facts.
MAIN = (
    "kind",
    "task",
    "attention",
    "model",
    "protocol",
    "budget",
    "seed",
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
NUMBERS = (
    "score",
    "floor",
    "loss",
    "parameters",
    "flops",
    "steps_per_second",
    "peak_memory_mib",
    "dead_queries",
    "examples",
)
# Facts of which nobody makes a column: long lists, and details of a conversion's stages.
LEFT_OUT = (
    "test.predicted",
    "test_best.predicted",
    "test_last.predicted",
    "compute.parts.",
    "predictions.",
    "labels.",
    "stage1.",
    "stage2.",
    "digest",
    "codes",
)
CHOSEN = ("optimizer", "schedule", "callbacks")  # a word each, "none" for what the recipe has
# Columns with another name than their fact.
RENAMED = {
    "protocol": "protocol.name",
    "loss": "test.loss",
    "parameters": "compute.parameters",
    "flops": "compute.flops",
    "fingerprint": "data.fingerprint",
    "dead_queries": "test.dead_rows",
    "examples": "test.examples",
}


class Records(list[Record]):
    """Finished runs as a list, and as a data frame."""

    def __repr__(self) -> str:
        return f"<{len(self)} records of finished runs; .to_pandas() makes a data frame of them>"

    def to_pandas(self) -> pd.DataFrame:
        frame = frame_of(self).infer_objects().copy()  # in one piece
        return frame.assign(score=frame["score"].round(4))  # an accuracy is a float32

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
    """Every fact under its dotted name, settings without `settings.` before it; then MAIN."""
    for name, value in flat(record.facts):
        if not name.startswith(LEFT_OUT):
            text = isinstance(value, list) and name != "curve"
            yield name.removeprefix("settings."), str(value) if text else value
    for option, value in options_of(record).items():
        yield f"attention.{option}", str(value) if isinstance(value, list) else value
    yield "pretrain.name", record.get("settings.pretrain.name", "none")
    yield "processes", record.get("settings.processes") or "none"
    for name in CHOSEN:
        yield name, spelt(record.get(f"settings.{name}"))
    yield "task", record["task"]  # its name, not its settings
    for column in ("kind", "attention", "score", "floor", "code", "revision", "run"):
        yield column, getattr(record, column)
    for column, fact in RENAMED.items():
        yield column, record.get(fact)
    parts = record.get("code") or {}
    # That of the parts which all runs share, whatever they choose.
    shared = {
        part: value
        for part, value in parts.items()
        if part not in PRETRAINING and not part.startswith(code.CHOSEN)
    }
    yield "code_of_training", record.code if shared == parts else hash_parts(shared)
    yield "path", str(record.path)


def options_of(record: Record) -> dict[str, Any]:
    """Give the options of a run's attention; those younger than the record as they usually are."""
    usual = usual_of(record) if record.kind == TRAINING else {}
    options = usual | later_options(record.attention) | record["attention"]
    return {key: value for key, value in options.items() if key != "name"}


def usual_of(record: Record) -> dict[str, Any]:
    """Give the options that `attention=<name>` sets on the run's task and protocol."""
    return usual_options(record.attention, record["settings.task.name"], record["protocol.name"])
