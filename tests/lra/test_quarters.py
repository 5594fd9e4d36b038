"""Which tests a day's quarter runs: four quarters run all of them, those marked `rest` once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest

from .. import conftest

ROOT = Path(__file__).resolve().parents[2]
SUITE = """
import pytest

@pytest.mark.parametrize("n", range(10))
def test_always(n):
    pass

@pytest.mark.rest
@pytest.mark.parametrize("n", range(40))
def test_rest(n):
    pass

@pytest.mark.rest(3)
@pytest.mark.parametrize("n", range(9))
def test_third(n):
    pass
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A folder with tests, of which 49 are marked."""
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


def test_four_quarters_run_everything_and_the_rest_once(suite: Path):
    ran: list[str] = []
    for quarter in "1234":
        done = run(suite, "-v", "--quarter", quarter)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"quarter {quarter} of 4 of the tests marked rest" in done.stdout
        ran += [line.split()[0] for line in done.stdout.splitlines() if " PASSED" in line]
        assert (" test_some.py::test_third" in " ".join(ran)) == (quarter >= "3")
    third = [name for name in ran if "test_third" in name]
    assert sorted(third) == sorted(f"test_some.py::test_third[{n}]" for n in range(9))
    ran = [name for name in ran if name not in third]
    rest = [name for name in ran if "test_rest" in name]
    assert sorted(rest) == sorted(f"test_some.py::test_rest[{n}]" for n in range(40))
    assert sorted(ran) == sorted(rest + 4 * [f"test_some.py::test_always[{n}]" for n in range(10)])


def test_helping_processes_run_the_same_quarter(suite: Path):
    pytest.importorskip("xdist")
    alone = run(suite, "--quarter", "2")
    helped = run(suite, "--quarter", "2", "-p", "xdist", "-n", "2")
    said = [re.findall(r"\d+ passed", done.stdout) for done in (alone, helped)]
    assert said[0] == said[1] != [], helped.stdout + helped.stderr


def test_four_days_are_four_quarters():
    days = [date(2027, 2, 26) + timedelta(days=n) for n in range(4)]
    assert sorted(conftest.chosen_quarter("today", day) for day in days) == [1, 2, 3, 4]


@pytest.mark.parametrize("word", ["0", "5", "2.0", "tomorrow", ""])
def test_another_quarter_is_refused(word: str):
    with pytest.raises(pytest.UsageError, match="give 1 to 4, or today"):
        conftest.chosen_quarter(word, date(2027, 1, 1))


def test_a_name_keeps_its_quarter():
    """Or four days would not see all of a suite that grows."""
    names = [
        "tests/a.py::test_b",
        "tests/a.py::test_b[1]",
        "tests/a.py::test_b[2]",
        "tests/c.py::é",
    ]
    assert [conftest.quarter_of(name) for name in names] == [2, 3, 2, 1]
