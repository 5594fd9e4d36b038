"""The committed tables are what the committed records give, and what was sent is still right."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lra.cli import main

from ..lra.report.test_render import smaller
from ..lra.results.test_submit import refuse_sent

RESULTS = Path(__file__).resolve().parents[2] / "results"
Capture = pytest.CaptureFixture[str]


def test_the_committed_tables_are_what_the_records_give(capsys: Capture):
    assert main(["table", "--check", "--results", str(RESULTS)]) == 0, capsys.readouterr().out


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
@pytest.mark.parametrize("name", ["glue_minilm", "single", "recall"])
def test_letters_of_the_widest_tables_can_be_read_in_a_column(name: str, tmp_path: Path):
    """7 of 10 points, as subscripts have them."""
    text = (RESULTS / "tables" / f"{name}-paper.tex").read_text(encoding="utf-8")
    assert smaller(text, tmp_path) > 0.7


def test_what_was_sent_to_this_project_is_still_right():
    """A pull request may hold what no `lra records submit` has seen."""
    refuse_sent(RESULTS / "records")
