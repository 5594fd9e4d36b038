"""A table by the recipe of docs/extend, and all of its recipes at once in one copy, where the whole
suite must pass, as `make test` runs it.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from ..lra.conftest import REPOSITORY, call_in, not_copied, run_in
from ..lra.recipes import PASTED, SMALL, follow, paste

HIDDEN = (".ci", ".github", ".gitattributes", ".gitignore", ".pre-commit-config.yaml")


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A copy with all results, and with hidden files."""
    copy = shutil.copytree(REPOSITORY, tmp_path / "clone", ignore=not_copied)
    for name in HIDDEN:
        source = REPOSITORY / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name)
    if (known := REPOSITORY / ".mypy_cache").exists():  # by `make lint`, mostly of torch
        shutil.copytree(known, copy / ".mypy_cache")
    return Path(copy)


@pytest.fixture
def results(clone: Path) -> Path:
    """In place of all results, whose figures take a minute, one table and its records."""
    folder = clone / "results"
    (folder / "records/campaign").mkdir(parents=True)
    for ending in ("jsonl", "npz"):
        record = f"records/campaign/mixers.{ending}"
        shutil.copy(REPOSITORY / "results" / record, folder / record)
    every = yaml.safe_load((REPOSITORY / "results/tables.yaml").read_text(encoding="utf-8"))
    one = [table for table in every if table["name"] == "mixers_listops"]
    (folder / "tables.yaml").write_text(yaml.safe_dump(one), encoding="utf-8")
    shutil.copy(REPOSITORY / "results/README.md", folder)
    return folder


@pytest.mark.rest
def test_a_table(clone: Path, results: Path):
    paste(clone, "table")
    follow(clone, "table")
    text = (results / "tables/three_methods.md").read_text(encoding="utf-8")
    assert all(f"| {name}" in text for name in ("luna", "linear", "softmax"))
    assert "rff" not in text
    assert (results / "figures/three_methods-listops-scores-dark.png").exists()


@pytest.mark.rest
@pytest.mark.timeout(7200)  # the suite itself takes six minutes of two idle cores
def test_with_all_recipes_in_it_the_whole_suite_is_green(whole: Path):
    """What one pastes fits what another does, and what looks at everything finds each in its place:
    whoever follows the page may run `make test`."""
    for name in PASTED:
        paste(whole, name)
    run_in(whole, "mypy")
    make = shlex.split(f"make {SMALL['make']}")
    call_in(whole, *make, "tables")
    for name in ("before", "square"):
        call_in(whole, *make, "golden", f"NAME={name}")
    run_in(whole, "tests.golden", "write", "--anew", "_scoring")
    call_in(whole, *make, "test")
