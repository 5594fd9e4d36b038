"""Figures of records: what is drawn, and that the same records give the same files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lra.cli import main
from lra.report import figures, looks, records
from lra.report.leaderboard import build
from lra.report.specs import Spec

from .conftest import Make

mpl = pytest.importorskip("matplotlib")

from matplotlib.figure import Figure  # noqa: E402


def rows(runs: Path, published: str | None = None):
    found = build(Spec(name="t", title="T", published=published), records.load([runs]))
    return found.rows


def test_a_sweep_is_drawn_against_its_option_with_published_values_apart(make: Make, runs: Path):
    for m in (4, 8, 16):
        for seed in (1, 2):
            make("luna", 0.4 + m / 100 + seed / 50, seed=seed, task="image", options={"M": m})
    axes = Figure().subplots()
    found = rows(runs, "M")
    assert figures.swept(found) == ["M"]
    figures.sweep(axes, found, "image")
    lines = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    assert list(lines["published (another protocol)"]) == [63.06, 64.32, 63.88]
    (measured,) = axes.containers
    assert list(measured.lines[0].get_xdata()) == [4, 8, 16]
    assert list(measured.lines[0].get_ydata()) == pytest.approx([47, 51, 59])


def test_two_options_make_a_map(make: Make, runs: Path):
    for m, l in ((4, 2), (4, 8), (16, 2)):
        make("luna", (m + l) / 100, options={"M": m, "L": l})
    axes = Figure().subplots()
    found = rows(runs)
    assert figures.swept(found) == ["L", "M"]
    figures.grid(axes, found, "listops")
    (image,) = axes.get_images()
    shown = image.get_array().filled(-1)
    assert shown == pytest.approx(np.array([[6, 18], [12, -1]]))  # rows: L = 2, 8; M = 4, 16


def test_only_numbers_are_a_sweep(make: Make, runs: Path):
    make("luna", 0.4, options={"kernel": "rff"})
    make("luna", 0.5)
    assert figures.swept(rows(runs)) == []
    make("linear", 0.5)
    assert figures.swept(rows(runs)) == []


def test_curves_are_means_over_seeds(make: Make, runs: Path):
    make("luna", 0.4)
    make("luna", 0.6, seed=2)
    axes = Figure().subplots()
    figures.curves(axes, rows(runs), "listops")
    (line,) = axes.get_lines()
    assert list(line.get_xdata()) == [50, 100]
    assert list(line.get_ydata()) == pytest.approx([25, 50])


def test_accuracy_against_compute_places_every_row(make: Make, runs: Path):
    make("luna", 0.4, compute__flops=2_000_000_000)
    make("linear", 0.5, compute__flops=1_000_000_000)
    axes = Figure().subplots()
    figures.compute(axes, rows(runs), "listops")
    points = [(c.lines[0].get_xdata()[0], c.lines[0].get_ydata()[0]) for c in axes.containers]
    assert sorted(points) == [(pytest.approx(1), pytest.approx(50)), (2, pytest.approx(40))]
    assert {t.get_text() for t in axes.texts} == {"luna", "linear"}


def test_from_the_command_line_and_the_same_files_again(make: Make, runs: Path, tmp_path: Path):
    for m in (4, 8):
        make("luna", 0.4 + m / 100, options={"M": m})
    results = tmp_path / "results"
    records.export([runs], results / "records")
    command = ["figures", "records", "--results", str(results)]
    assert main(command) == 0
    before = {p.name: p.read_bytes() for p in (results / "figures").iterdir()}
    assert {"ablation_m-listops-M.png", "ablation_m-listops-M.svg",
            "leaderboard-listops-curves.svg"} <= set(before)  # fmt: skip
    assert main(command) == 0
    assert {p.name: p.read_bytes() for p in (results / "figures").iterdir()} == before


def test_a_method_looks_the_same_in_every_table(make: Make, runs: Path):
    make("luna", 0.4)
    make("linear", 0.5)
    make("softmax", 0.3)
    every = rows(runs)
    look = dict(zip([r.attention for r in every], looks.looks(every), strict=True))
    assert len({str(v) for v in look.values()}) == 3
    fewer = [r for r in every if r.attention != "linear"]
    assert looks.looks(fewer) == [look[r.attention] for r in fewer]
    assert looks.places([r for r in every if r.attention == "luna"]) == [0]


def test_names_avoid_each_other(make: Make, runs: Path):
    make("luna", 0.40)
    make("linear", 0.41)
    axes = Figure().subplots()
    figures.compute(axes, rows(runs), "listops")
    axes.figure.canvas.draw()
    one, other = (t.get_window_extent() for t in axes.texts)
    assert not one.overlaps(other)
