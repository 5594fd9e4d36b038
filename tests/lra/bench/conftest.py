"""Benchmarks measured in this process."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from lra.bench import rounds, worker
from lra.bench.rows import BenchRow
from lra.bench.worker import measure
from lra.figures import benches


@pytest.fixture(autouse=True)
def _no_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than what these tests measure."""
    monkeypatch.setattr(worker.gc, "collect", lambda: 0)


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benches, "draw_if_possible", lambda result, stem: [])


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No processes are started: tests/lra/bench/test_rounds.py has what they do."""

    def ask(*sent: Any) -> list[BenchRow]:
        return list(measure(*pickle.loads(pickle.dumps(sent))))

    monkeypatch.setattr(rounds, "ask", ask)
