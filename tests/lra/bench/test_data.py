"""`lra bench data`: it measures what it prepared."""

from __future__ import annotations

from pathlib import Path

import pytest

import lra.data
from lra.bench import data as bench
from lra.bench.rows import BenchResult
from lra.cli import main
from lra.data.pathfinder import generator as pathfinder_generator
from lra.data.prepare import prepare
from lra.data.task import TINY

from .results import result_of


@pytest.mark.usefixtures("in_this_process", "without_pictures")
def test_the_command_measures_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(pathfinder_generator, "SIZES", {32: pathfinder_generator.SIZES[32]})
    monkeypatch.setattr(bench.os, "sched_setaffinity", lambda *_: None)
    path = f"path={TINY / 'listops'}"
    words = ["--prepare", "listops", "source=release", path, "--seconds", "0.1"]
    assert main(["bench", "data", *words, "--rounds", "1", "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found = BenchResult.load(next(tmp_path.glob("data-*.json")))
    drawn = found.select("drawing", "seconds")
    assert list(drawn) == ["ListOps expression", "Pathfinder 32 x 32"]
    assert all(0 < rows[0].values[0] < 10 for rows in drawn.values())
    assert found.cases["drawing", "Pathfinder 32 x 32"]["published_ms"] == 300
    facts = found.cases["prepared data", "listops source=release"]
    assert facts["examples"] == 160
    assert facts["provenance"] == "the official files, or files in their format"
    assert facts["mb"] == pytest.approx(160 * (2000 + 4 + 1) / 1e6, rel=0.02)
    assert facts["prepare_seconds"] > 0
    stored, tensors, opened = (
        found.select("prepared data", measure)["listops source=release"][0].values[0]
        for measure in ("stored_mb_per_s", "tensor_mb_per_s", "open_ms")
    )
    assert tensors == pytest.approx(8 * stored)
    assert 0 < opened < 1000
    assert next(tmp_path.glob("data-*.md")).read_text(encoding="utf-8") in out
    assert str(TINY) not in out  # where data lie on a machine


def test_reading_takes_no_more_memory_the_longer_it_goes_on(tmp_path: Path):
    options = lra.data.configure("image", ["source=tiny"])
    prepared = prepare(options, max_length=1024, data_dir=tmp_path)
    found = bench.read(prepared.folder, seconds=0.3)
    assert found["passes"] > 10
    assert found["growth_mib"] < 8
    assert found["resident_mib"] > found["growth_mib"]


def test_drawing_is_compared_with_the_published_program():
    cases = [{"group": "drawing", "case": "image", "published_ms": 300},
             {"group": "drawing", "case": "expression", "published_ms": None}]  # fmt: skip
    found = result_of(
        {
            ("drawing", "image", 0, "seconds"): [0.03, 0.01, 0.05],
            ("drawing", "expression", 0, "seconds"): [0.0005],
        },
        cases=cases,
    )
    drawing, _ = bench.tables(found)
    assert drawing.lines == [["image", "30 (10 .. 50)", "10"], ["expression", "0.5", ""]]
