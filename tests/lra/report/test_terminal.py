"""`lra table` on the terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lra import record as records
from lra.cli import main

from ..synthetic import Make


def test_the_terminal_splits_what_cannot_be_compared_and_names_rows(
    make: Make, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    make("luna", 0.41)
    make("luna", 0.43, seed=2)
    make("luna", 0.38, options={"M": 4})
    make("linear", 0.30, lr=0.1)
    assert main(["table", "--runs", str(runs)]) == 0
    shown = capsys.readouterr().out
    linear, luna = shown.split("protocol.recipe.lr 0.002")
    assert "protocol.recipe.lr 0.1" in linear
    assert re.search(r"luna M=8 +42\.0% ± 1\.4 .* 1 2\n", luna)
    assert re.search(r"luna M=4 +38\.0% .* 1\n", luna)
    assert re.search(r"linear +30\.0%", linear)
    assert "linear" not in luna
    records.export([runs], tmp_path / "out")  # and exported records alike
    assert main(["table", "--runs", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == shown
