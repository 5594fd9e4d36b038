"""Labels of every kind, and a task that can be given any."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from lra import data
from lra.data import registry
from lra.data.arrays import Prepared
from lra.data.prepare import find_or_prepare
from lra.metrics import metric

N = 30
IDS = [[1, 2, 1, 2]] * N
RNG = np.random.default_rng(0)
ONE = RNG.normal(size=N)
BINARY = RNG.integers(0, 2, (N, 3))
TWO = RNG.normal(37, 12, (N, 2))


def prepared(tmp_path: Path, name: str = "given") -> Prepared:
    return find_or_prepare(data.configure(name), max_length=0, data_dir=tmp_path / "data")


def given(labels: Any, ids: Any = None, **more: Any) -> data.Task:
    return data.from_arrays("given", (IDS if ids is None else ids, labels), **more)()


class Mean(data.Task):
    """The mean of four ids, in a picture, stacked, or alone."""

    name = "mean"
    classes, vocab, max_length = 1, 9, 4
    asks = "numbers"
    encoding: ClassVar[dict[str, str]] = {"code": "1"}

    def label(self, ids: np.ndarray) -> Any:
        return ids.mean()

    def splits(self, options: Any, job: Any) -> Iterator[data.RawSplit]:
        rng = np.random.default_rng(0)
        for split in ("train", "val", "test"):
            rows = rng.integers(1, 9, (N, 4))
            yield data.RawSplit(split, [data.Example(x, self.label(x)) for x in rows], N)


def registered(**changes: Any) -> type[data.Task]:
    return data.register(type("Changed", (Mean,), changes))


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what a test registers to itself."""
    monkeypatch.setattr(registry.TASKS, "added", {})
    metric.suited("numbers")  # imports all that are ours, which happens once
    monkeypatch.setattr(metric.METRICS, "added", dict(metric.METRICS.added))
