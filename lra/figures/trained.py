"""The words of a picture of a trained run."""

from __future__ import annotations

from lra.base.groups import usual_options
from lra.report.table import pairs_of
from lra.training.trained import Trained


def name(trained: Trained) -> str:
    """Task, attention with its options that differ from what `attention=<name>` sets, seed,
    checkpoint."""
    attention, task = trained.run.attention, trained.task.name
    method = attention["name"]
    usual = {"dwc": "none"} | usual_options(method, task, trained.protocol.name)
    differ = {k: v for k, v in attention.items() if k != "name" and v != usual.get(k)}
    words = f"{method} {pairs_of(differ)}".strip()
    return f"{task}, {words}, seed {trained.run.seed}, {trained.weights} checkpoint"


def conditions(trained: Trained) -> str:
    protocol, run = trained.protocol, trained.run
    return (
        f"protocol {protocol.name} v{protocol.version}, model {run.model.name}, "
        f"budget {run.budget:g}: {protocol.recipe.steps:,} steps of "
        f"{protocol.recipe.batch}\ndata: {trained.prepared.facts['provenance']}"
    )


def title(trained: Trained) -> str:
    return f"{name(trained)}\n{conditions(trained)}"


def stem(trained: Trained) -> str:
    """Name this run in the names of pictures."""
    run, folder = trained.run, trained.folder.resolve()
    return f"{run.task.name}-{run.attention['name']}-{folder.parent.name}-{run.seed}"
