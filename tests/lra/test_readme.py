"""The README says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lra import catalogue
from lra.cli import main
from lra.report.looks import KNOWN

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_catalogue_is_what_the_classes_say():
    """A method that is not in it yet joins with `make tables`."""
    listed = README.split(f"{catalogue.BEGIN}\n")[1].split(f"\n{catalogue.END}")[0].splitlines()
    said = catalogue.markdown().splitlines()
    assert listed == [line for line in said if line in listed]
    assert all(any(line.startswith(f"| `{name}` |") for line in listed) for name in KNOWN)


def test_a_method_joins_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    row = next(line for line in README.splitlines() if line.startswith("| `luna` |"))
    Path("README.md").write_text(README.replace(f"{row}\n", ""), encoding="utf-8")
    assert main(["list", "--write"]) == 0
    assert Path("README.md").read_text(encoding="utf-8") == README
    Path("README.md").write_text("of another project", encoding="utf-8")
    assert main(["list", "--write"]) == 2


def test_every_page_that_is_linked_exists():
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert links
    for link in links:
        assert (Path(__file__).resolve().parents[2] / link).exists(), link


def test_the_test_command_of_the_readme_is_the_one_ci_runs():
    ci = (Path(__file__).resolve().parents[2] / ".ci" / "run").read_text(encoding="utf-8")
    assert "```\nmake test\n```" in README
    assert ci.splitlines()[-1] == "make test"
