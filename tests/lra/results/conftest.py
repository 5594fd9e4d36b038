"""Synthetic runs with their answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lra.metrics import Answers
from lra.metrics.target import Classes
from lra.results import record as records

from ..synthetic import Make, add_answers

# Times of a run that ended before it began.


def named(table: list[tuple[dict[str, Any], str]]) -> pytest.MarkDecorator:
    """A case for each change of a record, and what is said of it."""
    names = [f"{next(iter(change))}-{why:.20}" for change, why in table]
    return pytest.mark.parametrize(("change", "why"), table, ids=names)


def answered(hits: int, n: int = 2000, labels: int = 0) -> Answers:
    """Answers of which the first `hits` are right; `labels` shifts the labels."""
    y = (torch.arange(n) + labels) % 10
    logits = torch.nn.functional.one_hot(torch.where(torch.arange(n) < hits, y, (y + 1) % 10), 10)
    return Classes(10).store(logits.float(), y)


@pytest.fixture
def proof(make: Make) -> Callable[..., records.Record]:
    """proof("luna", hits=800, **facts): the record of a run with its answers."""

    def write(attention: str = "luna", hits: int = 800, **more: Any) -> records.Record:
        answers = more.pop("answers_of_run", None) or answered(hits)
        facts: dict[str, Any] = {
            "stages__best__loss": Classes(10).loss_of(answers),
            "stages__best__predicted": torch.bincount(
                torch.from_numpy(answers.answers), minlength=10
            ).tolist(),
        }
        path = make(attention, hits / 2000, **(facts | more))
        add_answers(path, answers)
        return records.read_record(path)

    return write
