"""What a task asks of a network, and how its answers are scored.

target.py   what is asked (one class, several labels, numbers): loss, and what is stored
answers.py  the stored answers to every test example
metric.py   a score of answers: its unit, which way is better, its noise, a constant answer
classes.py, labels.py, numbers.py, language.py, glue.py   the metrics of this package

Importing this costs nothing, using it numpy alone: tables recompute scores without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lra.metrics.answers import Answers
    from lra.metrics.metric import Metric, get, names, register
    from lra.metrics.target import IGNORED, Target

__all__ = ["IGNORED", "Answers", "Metric", "Target", "get", "names", "register"]


def __getattr__(name: str) -> Any:
    for module in ("metric", "target", "answers") if name in __all__ else ():
        holder = importlib.import_module(f"lra.metrics.{module}")
        if hasattr(holder, name):
            return getattr(holder, name)
    raise AttributeError(f"module 'lra.metrics' has no attribute '{name}'")
