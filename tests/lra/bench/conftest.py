"""Measurements in this process: test_measure.py has what a process of its own does."""

from __future__ import annotations

from typing import Any

import pytest

from lra.bench import measure, plan


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(function: Any, *arguments: Any, mib: float, threads: int) -> Any:
        return function(*arguments)

    monkeypatch.setattr(measure, "run_alone", call)
    monkeypatch.setattr(plan, "run_alone", call)
