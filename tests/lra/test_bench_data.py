"""`lra bench data`: what it measures is what it prepared, and it writes both forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lra.data
from lra.bench import reader
from lra.cli import main
from lra.data import pathfinder_generator
from lra.data.listops import TINY
from lra.data.prepare import prepare


@pytest.fixture(autouse=True)
def one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {32: pathfinder_generator.SIZES[32]}
    monkeypatch.setattr(pathfinder_generator, "SIZES", sizes)


def test_it_measures_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--prepare", "listops", "source=release", f"path={TINY}", "--seconds", "0.1"]
    assert main(["bench", "data", *words, "--repeats", "1", "--out", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    page, told = sorted((tmp_path / "out").iterdir(), key=lambda path: path.suffix, reverse=True)
    assert (page.suffix, told.suffix) == (".md", ".json")
    assert page.read_text() in out
    facts = json.loads(told.read_text())
    assert [row["kind"] for row in facts["drawing"]] == ["ListOps expression", "Pathfinder 32 x 32"]
    assert all(0 < row["lowest"] <= row["ms"] <= row["highest"] for row in facts["drawing"])
    (row,) = facts["prepared"]
    assert (row["data"], row["examples"]) == ("listops source=release", 160)
    assert row["provenance"] == "the official files, or files in their format"
    assert row["mb"] == pytest.approx(160 * (2000 + 4 + 1) / 1e6, rel=0.02)
    assert row["tensor_mb_per_s"] == pytest.approx(8 * row["stored_mb_per_s"])
    assert 0 < row["open_ms"] < 1000
    assert str(TINY) not in out  # where data lie on a machine


def test_reading_takes_no_more_memory_the_longer_it_goes_on(tmp_path: Path) -> None:
    options = lra.data.configure("image", ["source=tiny"])
    prepared = prepare(options, max_length=1024, data_dir=tmp_path)
    found = reader.read(prepared.folder, batch=16, seconds=0.3)
    assert found["passes"] > 10
    assert found["growth_mib"] < 8
    assert found["resident_mib"] > found["growth_mib"]


def test_a_wish_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--prepare", "lisstops", "--seconds", "0.1", "--repeats", "1", "--out", str(tmp_path)]
    assert main(["bench", "data", *words]) == 2
    assert "unknown task 'lisstops'; did you mean listops?" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
