"""`lra bench compute`: a training step beside its count."""

from __future__ import annotations

from pathlib import Path

import pytest

from lra.bench.compute import tables
from lra.bench.rows import BenchResult
from lra.cli import main
from lra.compute.count import count_run
from lra.settings.compose import compose

from .results import result_of


@pytest.mark.usefixtures("in_this_process", "without_pictures")
def test_a_step_is_measured_beside_its_count(tmp_path: Path):
    words = ["protocol.data.pad_to=64", "protocol.data.max_length=64", "model.n_layers=1"]
    options = ["--methods", "linear", "--batch", "2", "--steps", "1", "--rounds", "1"]
    assert main(["bench", "compute", *words, *options, "--out", str(tmp_path)]) == 0
    found = BenchResult.load(next(tmp_path.glob("bench-*.json")))
    facts = found.cases["step", "linear"]
    run = compose([*words, "attention=linear", "compute=report"])
    assert facts["step_flops"] == 2 * count_run(run).total.training_flops
    assert facts["task"] == run.task.name
    assert facts["verdict"].startswith("under ×")
    for measure in ("seconds", "peak_bytes"):
        assert found.select("step", measure)["linear"][64].values[0] > 0
    assert found.facts["benchmark"] == f"lra bench compute {' '.join(words)}"
    assert "| `linear`  | exempt, under ×" in next(tmp_path.glob("*.md")).read_text(
        encoding="utf-8"
    )


def test_the_table_compares_time_with_flops_and_the_fastest_stands_first():
    facts = {"step_flops": 3e9, "flops_ratio": 1.5, "verdict": "over budget ×1.50", "exempt": None}
    found = result_of(
        {
            ("step", "slow", 64, "seconds"): [0.8, 0.6],
            ("step", "slow", 64, "peak_bytes"): [3 << 20],
            ("step", "stuck", 64, "seconds"): "no answer within 9 s",
            ("step", "fast", 64, "seconds"): [0.2, 0.3],
            ("step", "fast", 64, "peak_bytes"): [200 << 20],
        },
        cases=[{"group": "step", "case": case, **facts} for case in ("slow", "stuck", "fast")],
    )
    (table,) = tables(found)
    counted = ["over budget ×1.50", "3.00", "×1.50"]
    assert table.lines == [
        ["`fast`", *counted, "200.0 (×1.50)", "15.0", "200"],
        ["`slow`", *counted, "600.0 (×1.33)", "5.0", "3"],
        ["`stuck`", *counted, "no answer within 9 s", "", ""],
    ]
