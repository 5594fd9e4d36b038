"""The bundled miniatures through the whole framework: they train, they can be learned, and padding
changes nothing but time."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lra import data
from lra.base.disk import read_json
from lra.settings.compose import Run, compose
from lra.training.run import train
from tests.lra.conftest import SMALL

from ..synthetic import selected

LONG = ("pathfinder64", "pathx", "pathfinder256")


def run_of(task: str, attention: str, tmp_path: Path, *more: str) -> Run:
    grid = data.get(task).grid
    length = grid[0] * grid[1] if grid else 256
    words = [
        word for word in SMALL if not word.startswith(("task=", "attention=", "protocol.data"))
    ]
    return compose(
        [
            *words,
            f"task={task}",
            "task.source=tiny",
            f"attention={attention}",
            f"protocol.data.max_length={length}",
            f"protocol.data.pad_to={length}",
            f"protocol.recipe.batch={1 if task in LONG else 4}",
            f"data_dir={tmp_path / 'data'}",
            f"runs_dir={tmp_path / 'runs'}",
            *more,
        ]
    )


@pytest.mark.parametrize(
    ("task", "attention"), [*((task, "linear") for task in data.lra_tasks()), ("retrieval", "luna")]
)
def test_two_steps_of_every_task(task: str, attention: str, tmp_path: Path) -> None:
    run = run_of(
        task, attention, tmp_path, "protocol.recipe.steps=2", "protocol.evaluation.every=1"
    )
    train(run)
    (record,) = map(read_json, (tmp_path / "runs").rglob("result.json"))
    assert record["task"] == task
    assert record["data"]["source"] == "tiny"
    assert record["evaluation"] == "fused", "by machine code, which tests have"
    assert 0 <= record["score"] <= 100
    assert math.isfinite(selected(record)["loss"])
    assert selected(record)["examples"] == record["data"]["examples"]["test"]
