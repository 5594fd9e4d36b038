"""Fixtures of the tool's tests that the study's tests use too, and what several of these read."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from lra.report.commands import study_of
from lra.report.study import Study
from lra.report.table import Table

from ..lra.conftest import clone
from ..lra.figures.conftest import drawn

__all__ = ["clone", "drawn"]

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
SCRIPTS = (
    *("pictures", "ladder", "listops", "states", "trained"),
    *("overall", "recount", "reruns", "lengths", "examples", "boxes"),
)


@pytest.fixture(scope="session")
def study() -> Iterator[dict[str, ModuleType]]:
    """The scripts that draw, by name."""
    with pytest.MonkeyPatch.context() as patch:
        for folder in ("scripts/study", "scripts/study/theory"):
            patch.syspath_prepend(ROOT / folder)
        yield {name: importlib.import_module(name) for name in SCRIPTS}
    for name in SCRIPTS:
        sys.modules.pop(name, None)


@pytest.fixture(scope="session")
def committed() -> Study:
    return study_of(RESULTS)


@pytest.fixture(scope="session")
def made(committed: Study) -> dict[str, Table]:
    return {table.spec.name: table for table in committed.tables}
