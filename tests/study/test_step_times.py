"""The times that `lra plan` knows are those of the committed runs."""

from __future__ import annotations

import runpy
from pathlib import Path

import lra
from lra.reference import times

ROOT = Path(__file__).resolve().parents[2]


def test_the_times_of_the_package_are_those_of_the_committed_runs():
    """All of them; of what their steps compute and write, which takes a second each, a few."""
    made = runpy.run_path(str(ROOT / "scripts/study/step_times.py"))
    table = made["times"](lra.records(ROOT / "results" / "records").to_pandas())
    records = table.pop("record")
    text = table.to_csv(index=False, float_format="%.3g", lineterminator="\n").splitlines()
    kept = times.FILE.read_text(encoding="utf-8").splitlines()
    assert [line.rsplit(",", 2)[0] for line in kept] == text, "make reference"
    for i in range(0, len(records), len(records) // 4):
        assert kept[i + 1].split(",")[-2:] == [f"{n:.3g}" for n in made["work"](records[i])]
