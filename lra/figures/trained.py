"""The words of a picture of a trained run."""

from __future__ import annotations

from lra.base.groups import usual_options
from lra.figures.style import in_words
from lra.training.trained import Trained


def name(trained: Trained) -> str:
    """Task, attention with the options that differ from `attention=<name>`, seed, checkpoint."""
    attention, task = trained.run.attention, trained.task.name
    usual = {"dwc": "none"} | usual_options(attention["name"], task, trained.protocol.name)
    differ = {k: v for k, v in attention.items() if k != "name" and v != usual.get(k)}
    method = ", ".join(filter(None, (attention["name"], in_words(differ))))
    return f"{task}, {method}, seed {trained.run.seed}, {trained.weights} checkpoint"


def conditions(trained: Trained) -> str:
    protocol, run = trained.protocol, trained.run
    return (
        f"protocol {protocol.name} v{protocol.version}, model {run.model.name}, "
        f"{protocol.recipe.steps:,} steps of {protocol.recipe.batch}; "
        f"data: {trained.prepared.facts['provenance']}"
    )


def stem(trained: Trained) -> str:
    """Name this run in the names of pictures."""
    run, folder = trained.run, trained.folder.resolve()
    return f"{run.task.name}-{run.attention['name']}-{folder.parent.name}-{run.seed}"
