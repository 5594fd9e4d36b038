"""Records as a data frame: a line per run, a column per fact (docs/columns.md).

Tables, figures and the page are made from it, and `lra.records(...).to_pandas()` gives it to
everybody. Whole numbers stay whole, and what a run lacks is None.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from lra.base.code import PRETRAINING, Code
from lra.base.groups import later_options, usual_options
from lra.results.record import Record
from lra.runs.schema import TRAINING, flat

# The columns that most questions need, which every record has, before those of single facts.
MAIN = ("kind", "task", "attention", "model", "protocol", "budget", "seed", "score", "floor",
        "loss", "steps", "parameters", "flops", "steps_per_second", "fingerprint", "code", "run",
        "path")  # fmt: skip
NUMBERS = ("score", "floor", "loss", "parameters", "flops", "steps_per_second", "peak_memory_mib",
           "dead_queries", "examples")  # fmt: skip
# Facts of which nobody makes a column: long lists, and details of a conversion's stages.
LEFT_OUT = ("test.predicted", "test_best.predicted", "test_last.predicted", "compute.parts.",
            "predictions.", "labels.", "stage1.", "stage2.", "digest", "codes")  # fmt: skip


class Records(list[Record]):
    """Finished runs as a list, and as a data frame."""

    def to_pandas(self) -> pd.DataFrame:
        return frame_of(self).infer_objects()

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
    settings = record["settings"]
    yield "pretrain.name", record.get("settings.pretrain.name", "none")
    yield "processes", settings.get("processes") or "none"
    yield "kind", record.kind
    yield "task", record["task"]
    yield "attention", record.attention
    yield "protocol", record.get("protocol.name")
    yield "score", record.score
    yield "floor", record.floor
    yield "loss", record.get("test.loss")
    yield "parameters", record.get("compute.parameters")
    yield "flops", record.get("compute.flops")
    yield "fingerprint", record.get("data.fingerprint")
    yield "dead_queries", record.get("test.dead_rows")
    yield "examples", record.get("test.examples")
    yield "code", record.code
    yield "code_of_training", _code_of_training(record)
    yield "revision", record.revision
    yield "run", record.run
    yield "path", str(record.path)


def options_of(record: Record) -> dict[str, Any]:
    """Give the options of a run's attention; those younger than the record as they usually are."""
    usual = usual_of(record) if record.kind == TRAINING else {}
    options = usual | later_options(record.attention) | record["attention"]
    return {key: value for key, value in options.items() if key != "name"}


def usual_of(record: Record) -> dict[str, Any]:
    """Give the options that `attention=<name>` sets on the run's task and protocol."""
    return usual_options(record.attention, record["settings.task.name"], record["protocol.name"])


def _code_of_training(record: Record) -> str:
    """Hash the parts of the code that runs with and without pretraining share."""
    parts = record.get("code") or {}
    shared = {part: value for part, value in parts.items() if part not in PRETRAINING}
    return record.code if shared == parts else Code(shared).hash
