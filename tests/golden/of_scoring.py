"""Scores, their noise and their floors, of given answers by every metric."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lra.metrics import metric
from lra.metrics.answers import Answers
from lra.metrics.metric import BUILTIN
from lra.metrics.target import IGNORED, Classes, Labels, Target
from lra.metrics.target import Numbers as OfNumbers

from .compare import Numbers
from .of_network import waves

N = 40


def asked() -> dict[str, tuple[Target, torch.Tensor, torch.Tensor]]:
    """Targets with the logits of N answers and their labels."""
    number = torch.arange(N)
    return {
        "classes": (Classes(2), 2 * waves(N, 2), (number * 7 % 3 > 0).long()),
        "labels": (Labels(3), 2 * waves(N, 3), (waves(N, 3, shift=0.4) > 0.1).float()),
        "numbers": (
            OfNumbers(1, (0.5,), (2.0,)),
            waves(N, 1),
            (2 * waves(N, shift=0.6) + 0.5).float(),
        ),
    }


def scoring() -> Numbers:
    numbers: Numbers = {}
    for name, (target, logits, labels) in asked().items():
        answers = target.store(logits.float(), labels)
        numbers[name] = {
            "loss": float(target.loss(logits, labels)),
            "loss of answers": target.loss_of(answers),
            "values": np.asarray(target.values(answers)).tolist()[:10],
            "answers": np.asarray(answers.answers, float).flatten().tolist()[:12],
            "log_p": np.asarray(answers.log_p, float).tolist()[:12],
        }
        grouped = answers.grouped(np.array([1, 3, 4, 2] * 4))
        for word in BUILTIN:
            if name in metric.get(word).targets:
                numbers[f"{name} {word}"] = _scored(word, answers, grouped, target)
    return numbers | {"tokens": _tokens()}


def _scored(word: str, answers: Answers, grouped: Answers, target: Target) -> dict[str, Any]:
    made = metric.get(word)
    train, test = answers.labels[::2], answers.labels[1::2]
    facts: dict[str, Any] = {
        "score": made.score(answers, target),
        "better": [made.better(1.0, 2.0), made.better(2.0, float("nan"))],
        "of counts": made.from_counts(1.5, 7, 9),
    }
    facts["noise"] = made.noise(answers, target)
    facts["noise of groups"] = made.noise(grouped, target)
    if not made.needs_log_p:
        facts["floor"] = made.constant(train, test, target)
    return facts


def _tokens() -> dict[str, Any]:
    """A loss of tokens of which some are not scored."""
    labels = torch.tensor([[1, IGNORED, 0], [IGNORED, IGNORED, 2]])
    target = Classes(4)
    return {
        "loss": float(target.loss(waves(2, 3, 4), labels)),
        "scored": target.scored(labels).int().flatten().tolist(),
    }
