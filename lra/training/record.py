"""What a run has measured, as its record (lra/runs/schema.py)."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import nn

import luna
from lra.base.config import Recipe
from lra.base.errors import UserError
from lra.base.versions import methods_of
from lra.metrics.answers import Answers
from lra.metrics.metric import facts_of
from lra.runs import environment
from lra.runs.folder import RunFolder, read_metrics
from lra.runs.schema import TrainingRecord, problem_of
from lra.settings.run import Run
from lra.training.module import LRAModule
from lra.training.trainer import LRAData


def record_of(
    measured: dict[str, Any], trainer: pl.Trainer, module: LRAModule, folder: RunFolder
) -> dict[str, Any]:
    """Build the record of a run from what was measured, its settings, and its trainer. What does
    not fit the schema would be refused when it is read, so it is refused here."""
    run, device = folder.run, trainer.strategy.root_device
    facts = measured | {
        "kind": "training",
        "task": run.task.name,
        "attention": run.experiment.settings()["attention"],  # without usual values that came later
        "model": run.model.name,
        "protocol": {"name": run.protocol.name, "version": run.protocol.version},
        "steps_share": run.steps_share,
        "steps": run.protocol.recipe.steps,
        "batch": run.protocol.recipe.batch,
        "precision": run.trainer.precision,
        "preset": run.compute.preset,
        "departs": departures_of(run),
        "metric": facts_of(module.metric),
        "score": measured["stages"][measured["select"]]["score"],
        "curve": [
            [int(row["step"]), float(row["dev_score"])]
            for row in read_metrics(folder.metrics)
            if row["dev_score"]
        ],
        "rates": rates_of(trainer, run.protocol.recipe),
        "seconds": module.clock.read(),
        "steps_per_second": module.clock.steps_per_second,
        "peak_memory_mib": environment.peak_memory_mib(device),
        "evaluation": evaluation_of(module, device.type),
        "machine": environment.machine(device) | how_executed(trainer, run),
        **environment.origin(),
    }
    if (problem := problem_of(facts)) is not None:
        raise UserError(f"no table would read what this run measured: {problem}")
    return TrainingRecord.model_validate(facts).facts()


def departures_of(run: Run) -> str | None:
    """How its methods differ from the profile of its protocol."""
    methods = (luna.get(name) for name in methods_of(run.attention))
    said = (method.differences_from_profile.get(run.protocol.profile) for method in methods)
    return "; ".join(dict.fromkeys(text for text in said if text)) or None


def evaluation_of(module: nn.Module, device: str) -> str | None:
    """By which of their ways its methods computed, where they have several."""
    mixers = (m for m in module.modules() if isinstance(m, luna.Mixer))
    ways = (mixer.evaluation(device) for mixer in mixers)
    return ", ".join(dict.fromkeys(way for way in ways if way)) or None


def how_executed(trainer: pl.Trainer, run: Run) -> dict[str, Any]:
    """What moves speed and memory, and of itself no number."""
    facts: dict[str, Any] = {"processes": trainer.world_size}
    if run.in_pieces:
        facts["micro_batch"] = run.in_pieces
    return facts | ({"checkpointing": True} if run.trainer.checkpointing else {})


def test(
    trainer: pl.Trainer, module: LRAModule, loaders: LRAData, step: int
) -> tuple[dict[str, Any], Answers]:
    """Answer all test examples; give what a record says of this stage, and the answers."""
    trainer.test(module, loaders, verbose=False)
    answers, target = module.answers(), module.target
    facts = module.evaluated["test"] | {
        "loss": trainer.callback_metrics["test/loss"].item(),
        "metrics": {m.name: m.score(answers, target) for m in module.metrics[1:]},
        "noise": module.metric.noise(answers, target),
        "step": step,
        "dead_rows": module.dead_rows(),
        "weights": digest_of_weights(module.network),
    }
    if module.counts:
        facts["predicted"] = np.bincount(answers.answers, minlength=target.outputs).tolist()
    return facts, answers


def digest_of_weights(network: torch.nn.Module) -> str:
    """Hash weights by their names, so that a record and a checkpoint can be told to belong
    together."""
    state = hashlib.sha256()
    for name, values in sorted(network.state_dict().items()):
        if not isinstance(values, torch.Tensor):  # what a method keeps beside its weights
            continue
        state.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        state.update(values.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()[:16]


def rates_of(trainer: pl.Trainer, recipe: Recipe) -> list[dict[str, Any]]:
    """Give the groups of the optimiser: the highest rate that the schedule gives each, its decay
    and its size."""
    schedule = trainer.lr_scheduler_configs[0].scheduler
    groups = trainer.optimizers[0].param_groups
    factors = getattr(schedule, "lr_lambdas", [lambda step: 1.0] * len(groups))
    return [
        {
            "lr": group.get("initial_lr", group["lr"]) * max(map(factor, range(recipe.steps))),
            "weight_decay": float(group.get("weight_decay", 0.0)),
            "parameters": sum(p.numel() for p in group["params"]),
        }
        for group, factor in zip(groups, factors, strict=True)
        if group["params"]
    ]
