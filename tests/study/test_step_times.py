"""The times that `lra plan` knows are those of the committed runs."""

from __future__ import annotations

import runpy
from pathlib import Path

import lra
from lra.reference import times

ROOT = Path(__file__).resolve().parents[2]


def test_the_times_of_the_package_are_those_of_the_committed_runs():
    made = runpy.run_path(str(ROOT / "scripts/study/step_times.py"))["text"]
    runs = lra.records(ROOT / "results" / "records").to_pandas()
    assert times.FILE.read_text(encoding="utf-8") == made(runs), "make reference"
