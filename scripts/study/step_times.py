"""What a step took in the committed runs, for `lra plan`: lra/reference/times.csv.

`make reference` runs it, after new records. A line is a method on a task, at one batch and
on one device.
"""

from __future__ import annotations

import pandas as pd

import lra
from lra.base.disk import write_atomically
from lra.compute.count import count_run
from lra.compute.traffic import bytes_of_step
from lra.reference.times import FILE
from lra.settings.experiment import read_experiment

SAME = {
    "task": "task",
    "protocol": "protocol",
    "attention": "attention",
    "model.n_layers": "layers",
    "model.d_model": "width",
    "batch": "batch",
    "machine.device": "device",
    "machine.threads": "threads",
}


def times(runs: pd.DataFrame) -> pd.DataFrame:
    """One row for each method, task and device of these runs."""
    trained = runs[(runs["kind"] == "training") & (runs["steps_per_second"] > 0)]
    trained = trained[trained["processes"] == "none"].rename(columns=SAME)
    seconds = 1 / trained["steps_per_second"]
    groups = seconds.groupby([trained[name] for name in SAME.values()])
    table = groups.agg(runs="size", least="min", median="median", most="max")
    table["record"] = trained.groupby([*SAME.values()])["record"].first()
    return table.reset_index()


def work(record: lra.Record) -> tuple[float, float]:
    """What a step computes and writes, in billions, counted of the record's settings."""
    run = read_experiment(record["settings"], record["seed"])
    flops = count_run(run).training_flops * run.protocol.recipe.batch
    return flops / 1e9, bytes_of_step(run) / 1e9


def text(runs: pd.DataFrame) -> str:
    table = times(runs)
    table["gflops"], table["gbytes"] = zip(*map(work, table.pop("record")), strict=True)
    return table.to_csv(index=False, float_format="%.3g", lineterminator="\n")


if __name__ == "__main__":
    write_atomically(FILE, text(lra.records("results/records").to_pandas()).encode())
    print(FILE)
