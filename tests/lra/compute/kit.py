"""Composed runs and counts that the tests of lra/compute share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

from torch import Tensor

import luna
from lra.base.config import Tolerance
from lra.compute.budget import Budget, budget_of
from lra.compute.count import Count, count_run
from lra.settings.compose import Run
from lra.settings.experiment import plain
from lra.settings.presets import take_cost_facts
from lra.settings.search_path import read
from luna.base import Attention, Paper
from luna.testing import registered

from ..conftest import composed

LAYERS, HEADS, D = 2, 2, 32  # of model=small
TOLERANCE = Tolerance(parameters=0.05, flops=0.1, examples=0.01)


def short_run(attention: str, *words: str, n: int = 256, **options: Any) -> Run:
    """A run at a length where everything is quick, its attention at the published options."""
    length = (f"protocol.data.pad_to={n}", f"protocol.data.max_length={n}")
    return with_attention(composed("compute=report", *words, *length), attention, **options)


def with_attention(run: Run, name: str, **options: Any) -> Run:
    published = {key: plain(p.default) for key, p in luna.options(name).items()}
    return replace(run, attention={"name": name, "dwc": "none"} | published | options)


@cache
def counted(attention: str) -> Count:
    return count_run(short_run(attention))


@cache
def shipped(task: str, attention: str, preset: str = "matched") -> Run:
    """What composing with `attention=..` gives, without composing everything around it again."""
    slot = read("attention", attention) | {"preset": preset}
    run = copy.deepcopy(composed(f"task={task}"))
    for key, fact in take_cost_facts(slot, task).items():
        setattr(run.compute, key, fact)
    run.attention = slot
    return run


@cache
def budget(task: str) -> Budget:
    return budget_of(composed(f"task={task}"))


@contextmanager
def plugged(attend: Callable[[Tensor, Tensor, Tensor], Tensor], run: Run) -> Iterator[Run]:
    """This run with the attention `plug` of another package, which computes `attend(q, k, v)`."""

    class Plug(Attention):
        paper = Paper(title="A plug-in", year=2026, url="https://example.org")
        complexity = "O(n² e)"

        def attend(self, q, k, v, mask, x):  # type: ignore[no-untyped-def]
            return attend(q, k, v)

    compute = replace(run.compute, exempt=None)
    with registered(plug=Plug):
        yield replace(run, attention={"name": "plug", "dwc": "none"}, compute=compute)
