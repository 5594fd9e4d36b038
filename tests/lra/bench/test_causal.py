"""`lra bench causal`, from the command line to its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lra.bench.rows import BenchResult
from lra.cli import main


@pytest.mark.usefixtures("in_this_process", "without_pictures")
def test_the_state_of_luna_stays_and_that_of_softmax_grows(tmp_path: Path, capsys):
    words = "--lengths 16 32 --heads 1 --head-dim 8 --rounds 1 --out"
    assert main(["bench", "causal", *words.split(), str(tmp_path)]) == 0
    (file,) = tmp_path.glob("causal-*.json")
    found = BenchResult.load(file)
    state = {
        case: [row.values[0] for row in rows.values()]
        for case, rows in found.select("causal", "state_bytes").items()
    }
    D, e = 64, 8
    assert state["luna"] == [4 * D * (e + 1)] * 2
    assert state["softmax"] == [n * (4 * (8 + 8) + 1) for n in (16, 32)]  # with the mask
    for measure in ("prefill_seconds", "decode_seconds", "peak_bytes"):
        rows = found.select("causal", measure)
        assert all(row.values[0] > 0 for by_n in rows.values() for row in by_n.values())
    assert "time of one more token" in capsys.readouterr().out


def test_a_method_without_a_causal_form_is_refused(tmp_path: Path, capsys):
    assert main(["bench", "causal", "--methods", "nystrom", "--out", str(tmp_path)]) == 2
    assert "attention 'nystrom' has no causal form; choose from" in capsys.readouterr().err
