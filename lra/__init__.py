"""The Long Range Arena: data, one Transformer, training, counted compute, records and tables.

What is listed here is public and stays; everything else of `lra` may change. From a notebook:

    import lra

    run = lra.compose(["experiment=demo", "attention=luna", "seed=2"])
    record = lra.train(run)  # or resume it, or look up its result
    trained = lra.load(record.folder)
    trained.predict(["[MAX 2 9 [MIN 4 7 ] 0 ]"]).classes
    lra.records("runs").to_pandas()

Tasks of your own and data in memory: `lra.data` (docs/tasks.md). Nothing heavy is imported before
it is needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lra.base.errors import UserError
    from lra.results.frame import Records
    from lra.results.record import Record
    from lra.results.trained import Predictions, Trained
    from lra.settings.run import Run

__all__ = [
    "Predictions",
    "Record",
    "Records",
    "Run",
    "Trained",
    "UserError",
    "compose",
    "load",
    "records",
    "train",
]

_TYPES = {
    "Predictions": "results.trained",
    "Record": "results.record",
    "Records": "results.frame",
    "Run": "settings.compose",
    "Trained": "results.trained",
    "UserError": "base.errors",
}


def compose(words: Sequence[str] = ()) -> Run:
    """The checked settings of the run that `lra train <words>` would start.

    words    as on the command line: `key=value`, or a choice such as `task=listops`
    returns  settings to read, and to hand to `lra.train`

    run = lra.compose(["task=image", "attention=performer", "steps_share=0.01"])
    run.protocol.recipe.lr
    """
    from lra.settings.compose import compose

    return compose(words)


def train(run: Run) -> Record:
    """Start a run, resume it, or look up its result.

    run      its settings, from `lra.compose`
    returns  the record of the finished run

    record = lra.train(lra.compose(["experiment=demo"]))
    record.score, record.stage["loss"], record.folder
    """
    from lra.base.errors import UserError
    from lra.results.record import read_record
    from lra.settings.compose import check_again, command_of

    check_again(run)
    from lra.settings.errors import in_a_sentence
    from lra.training.run import train

    if run.processes > 1:
        raise UserError(
            "lra.train trains in this process alone: set trainer.devices=1 and "
            "trainer.num_nodes=1, or start the run with `lra train`"
        )
    with in_a_sentence():
        return read_record(train(run, command_of(run)))


def load(
    folder: str | Path | Record, *, data_dir: str | Path | None = None, device: str = "cpu"
) -> Trained:
    """The trained network of a finished run.

    folder    of the run, or one that `lra export` wrote; or the run's record
    data_dir  where its data lie; None: where the run had them, else `data`
    device    the network is put there, such as "cuda"
    returns   the network in evaluation mode, which predicts, and scores a split

    trained = lra.load("luna-listops")  # a run's folder works too
    trained.score(trained.evaluate("val"))
    """
    from lra.results.trained import load_trained
    from lra.settings.errors import in_a_sentence

    with in_a_sentence():
        return load_trained(folder, data_dir=data_dir, device=device)


def records(*folders: str | Path) -> Records:
    """The finished runs below these folders, each once; a damaged one is left out, with a line on
    standard error.

    folders  of runs, or files of records; none: `runs`
    returns  a list of records, of which `to_pandas` makes a data frame

    keys = ["task", "attention", "protocol.recipe.lr"]  # means are over seeds, not over rates
    lra.records("runs").to_pandas().groupby(keys).score.mean()
    """
    from lra.results.frame import Records
    from lra.results.record import load_records

    return Records(load_records(folders or ["runs"], skip=True))


def __getattr__(name: str) -> Any:
    if name not in _TYPES:
        raise AttributeError(f"module 'lra' has no attribute '{name}'")
    return getattr(importlib.import_module(f"lra.{_TYPES[name]}"), name)
