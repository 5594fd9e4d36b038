"""The pages of results: their commands, and what they say of its records."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from ..lra import pages
from ..lra.pages import COMPOSED, PARSED, ROOT, kind

PAGES = sorted(f"results/{p.name}" for p in ROOT.glob("results/*.md"))
COMMANDS = pages.commands_of(PAGES)
EVERY = [command for page in PAGES for command in COMMANDS[page]]
# Beginnings of commands that only these pages have, and why they are not run here.
OWN = {
    "make gpu-quarter": "needs a GPU; tests/study/test_gpu_quarter.py",
    "python scripts/study/gpu_quarter.py": "the same",
    "lra train task=image protocol=s4": "1,024 pixels are its size; tests/lra/training/test_s4.py",
    "python scripts/study/theory/": "measures for minutes; tests/study/test_theory.py",
}
NOT_RUN = pages.NOT_RUN | OWN


def test_the_list_names_commands_that_there_are():
    for beginning in OWN:
        assert any(command.startswith(beginning) for command in EVERY), beginning


@pytest.mark.parametrize("command", sorted({c for c in EVERY if kind(c, COMPOSED)}))
def test_the_words_of_sweeps_compose(command: str):
    pages.compose_all(command)


@pytest.mark.parametrize(
    "command", sorted({c for c in EVERY if kind(c, PARSED) and not kind(c, NOT_RUN)})
)
def test_what_takes_long_is_known_to_its_command(command: str):
    pages.parse(command)


@pytest.mark.parametrize("page", PAGES)
def test_every_other_command_runs_as_printed(
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    pages.furnish()
    pages.follow(page, COMMANDS[page], NOT_RUN, monkeypatch, capsys)


def test_the_page_of_baselines_says_what_has_runs():
    """Whether a committed table has a method."""
    tabled = set()
    for path in (ROOT / "results" / "tables").glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            tabled |= {row["attention"] for row in csv.DictReader(file)}
    page = (ROOT / "docs" / "baselines.md").read_text(encoding="utf-8")
    said = re.findall(r"^\| `attention=(\w+).*` \| .+ \| (yes|no) \|$", page, re.M)
    assert {name for name, _ in said} >= {"softmax", "gla", "s4d"}
    assert said == [(name, "yes" if name in tabled else "no") for name, _ in said]
