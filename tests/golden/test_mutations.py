"""Golden runs see what they are there for: edits in a copy of the sources, one by one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import catalogue, compare
from .mutations import EVERY, FIRST, Mutation

ROOT = catalogue.ROOT
FOLDERS = ("luna", "lra", "configs", "hydra_plugins", "tests/golden")


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources and the golden runs, without machine code."""
    copy = tmp_path_factory.mktemp("copy")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "tests/__init__.py").touch()
    return copy


@pytest.fixture
def edited(copied: Path) -> Iterator[Path]:
    """The copy, whose files are put back after a test."""
    before = {file: (copied / file).read_text(encoding="utf-8") for file in {m.file for m in EVERY}}
    yield copied
    for file, text in before.items():
        (copied / file).write_text(text, encoding="utf-8")


def said_of(copy: Path, mutation: Mutation) -> str:
    """What the golden runs say of an edit."""
    file = copy / mutation.file
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden", "check", mutation.caught_by],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    return done.stderr


def remedy_of(name: str) -> str:
    """The words that name the integer."""
    golden = catalogue.every()[name]
    return golden.remedy().partition(" to ")[0].partition(" in ")[0]


@pytest.mark.parametrize("mutation", EVERY, ids=[m.name for m in EVERY])
def test_an_edit_finds_its_line(mutation: Mutation):
    """In every run of the tests, for the edits themselves are tried at night alone."""
    assert mutation.old in (ROOT / mutation.file).read_text(encoding="utf-8")


@pytest.mark.rest
@pytest.mark.parametrize("mutation", EVERY, ids=[m.name for m in EVERY])
def test_an_edit_that_moves_numbers_is_caught_by_name(edited: Path, mutation: Mutation):
    said = said_of(edited, mutation)
    assert "moved" in said, said
    assert remedy_of(mutation.caught_by) in said, said


def test_there_are_twenty_edits_beside_the_first():
    assert len(EVERY) - len(FIRST) >= 20


# ---------------------------------------------------------------------- comparison


@pytest.mark.parametrize(
    ("now", "where"),
    [
        ({"losses": [1.0, 2.0], "dev": {"step": 4}}, ""),
        ({"losses": [1.0, 2.0 + 1e-9], "dev": {"step": 4}}, ""),
        ({"losses": [1.0, 2.0 + 1e-6], "dev": {"step": 4}}, "loss at step 2: 2.000001 for 2"),
        ({"losses": [1.0, 2.0], "dev": {"step": 8}}, "dev step: 8 for 4"),
        ({"losses": [1.0], "dev": {"step": 4}}, "losses: [1.0] for [1.0, 2.0]"),
        ({"losses": [1.0, 2.0]}, "dev: None for {'step': 4}"),
        ({"losses": [1.0, float("nan")], "dev": {"step": 4}}, "loss at step 2: nan for 2"),
    ],
)
def test_the_first_number_that_moved_is_named(now: compare.Numbers, where: str):
    before = {"numerics": {"attention": 1}, "losses": [1.0, 2.0], "dev": {"step": 4}}
    found = compare.first_moved(now, before)
    assert str(found or "") == where
