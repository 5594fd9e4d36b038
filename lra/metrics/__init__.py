"""What a task asks of a network, and how its answers are scored.

target.py   what is asked (one class, several labels, numbers): loss, and what is stored
answers.py  the stored answers to every test example
metric.py   a score of answers: its unit, which way is better, its noise, a constant answer
classes.py, labels.py, numbers.py, language.py, glue.py   the metrics of this package

Importing this costs numpy alone: tables recompute scores without torch.
"""

from __future__ import annotations

from lra.metrics.answers import Answers
from lra.metrics.metric import Metric, get, names, register
from lra.metrics.target import IGNORED, Target

__all__ = ["IGNORED", "Answers", "Metric", "Target", "get", "names", "register"]
