"""CI runs the tests in parts: together they are all tests, each once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .. import conftest

ROOT = Path(__file__).resolve().parents[2]
SUITE = """
import pytest

@pytest.mark.parametrize("n", range(30))
def test_always(n):
    pass

@pytest.mark.rest
@pytest.mark.parametrize("n", range(20))
def test_rest(n):
    pass
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A folder with tests, of which 20 are marked."""
    (tmp_path / "test_some.py").write_text(SUITE, encoding="utf-8")
    return tmp_path


def run(suite: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, with the options and hooks of our suite and nothing else of it."""
    plain = ("-c", os.devnull, "--rootdir", str(suite), "-o", "markers=rest")
    ours = ("-p", "tests.conftest", "-p", "no:cacheprovider")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plain, *ours, *words],
        cwd=suite,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(("marked", "number"), [("not rest", 30), ("rest", 20)])
def test_all_shards_together_run_each_test_once(suite: Path, marked: str, number: int):
    ran: list[str] = []
    for part in "123":
        done = run(suite, "-v", "--shard", f"{part}/3", "-m", marked)
        assert done.returncode == 0, done.stdout + done.stderr
        some = [line.split()[0] for line in done.stdout.splitlines() if " PASSED" in line]
        assert 0 < len(some) < number
        ran += some
    assert len(ran) == len({*ran}) == number


def test_helping_processes_run_the_same_shard(suite: Path):
    pytest.importorskip("xdist")
    alone = run(suite, "--shard", "2/4")
    helped = run(suite, "--shard", "2/4", "-p", "xdist", "-n", "2")
    said = [re.findall(r"\d+ passed", done.stdout) for done in (alone, helped)]
    assert said[0] == said[1] != [], helped.stdout + helped.stderr


@pytest.mark.parametrize("word", ["0/4", "5/4", "2", "2.0/4", "tomorrow", "", "2/0"])
def test_another_shard_is_refused(word: str):
    with pytest.raises(pytest.UsageError, match="give a part and their number"):
        conftest.parts_of(word)


def test_a_name_keeps_its_shard():
    names = ["tests/a.py::test_b", "tests/a.py::test_b[1]", "tests/c.py::é"]
    assert [conftest.shard_of(name, 4) for name in names] == [2, 3, 1]
