"""The bundled miniatures through the whole framework: they train, they can be learned, and padding
changes nothing but time."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from lra import data
from lra.base.config import Pad
from lra.base.disk import read_json
from lra.data.loader import Loader
from lra.data.prepare import find_or_prepare
from lra.settings.compose import Run, compose
from lra.training.run import build, train
from tests.lra.conftest import SMALL

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
    assert record["evaluation"] == ("fused" if attention == "luna" else None)
    assert 0 <= record["test"]["accuracy"] <= 1
    assert math.isfinite(record["test"]["loss"])
    assert record["test"]["examples"] == record["data"]["examples"]["test"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prepared")


@pytest.mark.parametrize(
    ("task", "attention"),
    list(itertools.product(("text", "retrieval", "listops"), ("luna", "softmax"))),
)
def test_padding_to_the_batch_gives_the_same_logits(task: str, attention: str, place: Path) -> None:
    run = run_of(task, attention, place)
    assert run.protocol.data.mask.name == "length"
    prepared = find_or_prepare(run.task, max_length=256, data_dir=run.data_dir)
    network = build(run).network.eval()
    logits, widths = [], []
    for pad in (Pad.full, Pad.batch):
        run.protocol.data.pad = pad
        loader = Loader(prepared.split("test"), 4, rules=run.protocol.data)
        batches = [loader.batch(np.arange(i, i + 4)) for i in (0, 8, 20)]
        widths.append([batch.ids.shape[-1] for batch in batches])
        with torch.no_grad():
            logits.append(torch.cat([network(batch.ids, batch.mask) for batch in batches]))
    assert widths[0] == [256] * 3
    assert max(widths[1]) < 256
    assert all(width % 64 == 0 for width in widths[1])
    assert logits[0].std() > 0.01
    torch.testing.assert_close(*logits, rtol=1e-5, atol=1e-6)
