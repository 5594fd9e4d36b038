"""What a step of the same work took on other devices, for `lra plan`: lra/reference/times.csv."""

from __future__ import annotations

from collections.abc import Iterable

from lra.reference.times import Times, Work, times_of
from lra.settings.run import Run

TITLE = (
    "a step in finished runs of the same task, protocol, method, depth, width and batch; options "
    "may differ, and some shared their machine:"
)


def work_of(run: Run) -> Work:
    return Work(
        task=run.task.name,
        protocol=run.protocol.name,
        attention=run.attention["name"],
        layers=run.model.n_layers,
        width=run.model.d_model,
        batch=run.protocol.recipe.batch,
    )


def elsewhere(runs: Iterable[Run]) -> str:
    """A line for each method and device that is known, below a title; empty where none is."""
    works = dict.fromkeys(work_of(run) for run in runs)
    lines = [line_of(work, times) for work in works for times in times_of(work)]
    return "\n".join([TITLE, *lines]) if lines else ""


def line_of(work: Work, times: Times) -> str:
    """`  luna on listops, NVIDIA H100 80GB HBM3: 0.011 s (0.01 to 0.012 s, 9 runs)`"""
    step = f"{times.median:.2g} s"
    if times.runs > 1:
        step += f" ({times.least:.2g} to {times.most:.2g} s, {times.runs} runs)"
    return f"  {work.attention} on {work.task}, {times.place}: {step}"
