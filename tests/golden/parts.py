"""What each shared part of lra/base/versions.py computes, measured as far apart from the other
parts as it can be."""

from __future__ import annotations

from collections.abc import Callable

from . import of_conversion, of_data, of_network, of_scoring, of_steps, of_training
from .compare import Numbers

PARTS_MEASURED: dict[str, Callable[[], Numbers]] = {
    "backbone": of_network.backbone,
    "embedding": of_network.embedding,
    "projections": of_network.projections,
    "optimizer": of_steps.optimizer,
    "schedule": of_steps.schedule,
    "step": of_training.step,
    "data": of_data.data,
    "selection": of_training.selection,
    "seeding": of_training.seeding,
    "scoring": of_scoring.scoring,
    "pretraining": of_training.pretraining,
    "conversion": of_conversion.conversion,
}
