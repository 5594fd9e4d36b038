"""The tool apart from its study, and the attentions apart from the arena: a copy without the rest
has everything that it needs.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from ..lra.conftest import run_in
from ..lra.recipes import FEW_TRAINED
from ..lra.synthetic import write_run

ARENA = ("lra", "configs", "hydra_plugins", "tests/lra", "tests/golden", "tests/hydra_plugins")
PLAIN = ("-n", "0", "-p", "no:cacheprovider")
WORDS = FEW_TRAINED.split()


@pytest.fixture
def attentions(clone: Path) -> Path:
    """A copy with luna/ and its tests alone."""
    for name in ARENA:
        shutil.rmtree(clone / name)
    return clone


def collected(clone: Path) -> set[str]:
    """The folders of tests that pytest finds in a copy, in which each file can be imported."""
    printed = run_in(clone, "pytest", *PLAIN, "--collect-only")
    return set(re.findall(r"^tests/(\w+)/", printed, re.M))


@pytest.mark.rest
def test_the_tool_needs_no_study(clone: Path):
    assert not any((clone / name).exists() for name in ("results", "scripts/study", "tests/study"))
    assert collected(clone) == {"golden", "hydra_plugins", "lra", "luna"}
    for attention in ("linear", "luna"):
        printed = run_in(clone, "lra", "train", "experiment=demo", *WORDS, f"attention={attention}")
        assert "done: test accuracy" in printed
    assert "luna" in run_in(clone, "lra", "table")
    assert run_in(clone, "lra", "compare", "luna", "linear", "--task", "listops")
    for attention, accuracy in (("linear", 0.3), ("luna", 0.4)):  # runs that learned something
        write_run(clone / "learned", attention, accuracy)
    assert "figures/" in run_in(clone, "lra", "figures", "--runs", "learned")
    assert "'linear' is what it declares" in run_in(clone, "lra", "check", "linear")
    planned = run_in(clone, "lra", "plan", "experiment=demo", *WORDS, "attention=luna", "seed=2")
    assert "for 1 run" in planned
    found = run_in(clone, "lra", "data", "hunt", "listops", "source=tiny", "--minutes", "0.5")
    assert "the best on dev" in found


@pytest.mark.rest
def test_tables_of_results_need_records_alone(clone: Path):
    """No list of tables, no templates of pages."""
    run_in(clone, "lra", "train", "experiment=demo", *WORDS, "attention=linear")
    (clone / "results/records").mkdir(parents=True)
    run_in(clone, "lra", "records", "export", "results/records/mine.jsonl", "--runs", "runs")
    run_in(clone, "lra", "table", "--write")
    assert "are what the records give" in run_in(clone, "lra", "table", "--check")
    run_in(clone, "lra", "table", "--page", "page.html")
    assert (clone / "page.html").is_file()


@pytest.mark.rest
def test_the_attentions_need_no_arena(attentions: Path):
    assert collected(attentions) == {"luna"}
    run_in(attentions, "pytest", *PLAIN, "-m", "not rest", "-k", "linear", "tests/luna")
