"""The words of a picture of a trained run."""

from __future__ import annotations

from lra.base.groups import usual_options
from lra.figures.style import in_words
from lra.training.trained import Trained


def title_of(trained: Trained) -> str:
    """Task, attention with the options that differ from `attention=<name>`, seed, checkpoint; in a
    second line the conditions."""
    run, protocol, task = trained.run, trained.protocol, trained.task.name
    method, recipe = run.attention["name"], protocol.recipe
    usual = {"dwc": "none", "name": method} | usual_options(method, task, protocol.name)
    differ = {k: v for k, v in run.attention.items() if v != usual.get(k)}
    attention = ", ".join(filter(None, (method, in_words(differ))))
    return (
        f"{task}, {attention}, seed {run.seed}, {trained.weights} checkpoint\n"
        f"protocol {protocol.name} v{protocol.version}, model {run.model.name}, "
        f"{recipe.steps:,} steps of {recipe.batch}; data: {trained.prepared.facts['provenance']}"
    )
