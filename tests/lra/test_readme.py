"""The README says what is so."""

from __future__ import annotations

import re
from pathlib import Path

from lra.catalogue import markdown

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def test_the_catalogue_is_what_the_classes_say():
    assert f"<!-- lra list --markdown -->\n{markdown()}\n<!-- end -->" in README


def test_every_page_that_is_linked_exists():
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert links
    for link in links:
        assert (Path(__file__).resolve().parents[2] / link).exists(), link


def test_the_test_command_of_the_readme_is_the_one_ci_runs():
    ci = (Path(__file__).resolve().parents[2] / ".ci" / "run").read_text()
    assert "```\nmake test\n```" in README
    assert ci.splitlines()[-1] == "make test"
