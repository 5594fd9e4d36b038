"""Figures of records: what is drawn, and that the same records give the same files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lra.cli import main
from lra.figures import agreement
from lra.figures import records as figures
from lra.report import styles
from lra.report.leaderboard import build_all
from lra.report.specs import TableSpec
from lra.report.table import TableRow
from lra.results import record as records

from ..synthetic import Make, table

mpl = pytest.importorskip("matplotlib")

from matplotlib.figure import Figure  # noqa: E402


def rows(runs: Path, published: str | None = None) -> list[TableRow]:
    return table(runs, published=published).rows


def test_a_sweep_has_measured_and_published_lines(make: Make, runs: Path):
    for m in (4, 8, 16):
        for seed in (1, 2):
            make("luna", 0.4 + m / 100 + seed / 50, seed=seed, task="image", options={"M": m})
    figure = Figure()
    found = rows(runs, "M")
    assert figures.swept(found) == ["M"]
    figures.sweep(figure, found, "image")
    (axes,) = figure.axes  # what is close is on one axis
    lines = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    assert list(lines["published (another protocol)"]) == [63.06, 64.32, 63.88]
    (measured,) = axes.containers
    assert list(measured.lines[0].get_xdata()) == [4, 8, 16]
    assert list(measured.lines[0].get_ydata()) == pytest.approx([47, 51, 59])


def test_the_heading_says_what_was_done_and_how_exact_it_is(make: Make, runs: Path):
    make("luna", 0.5)
    make("luna", 0.5, seed=2)
    make("linear", 0.5)
    found = table(runs, title="Some title")
    assert figures._heading(found, found.rows, "listops").splitlines() == [
        "listops: Some title",
        f"100 steps of 32; {found.conditions}",
        "1 to 2 seeds; one standard error of 2,000 test examples is 1.1 points",
        "data: re-generated, not the released files",
    ]


def test_two_options_make_a_map(make: Make, runs: Path):
    for m, l in ((4, 2), (4, 8), (16, 2)):
        make("luna", (m + l) / 100, options={"M": m, "L": l})
    figure = Figure()
    found = rows(runs)
    assert figures.swept(found) == ["L", "M"]
    figures.grid(figure, found, "listops")
    (image,) = figure.axes[0].get_images()
    shown = image.get_array().filled(-1)
    assert shown == pytest.approx(np.array([[6, 18], [12, -1]]))  # rows: L = 2, 8; M = 4, 16


def test_curves_are_means_over_seeds(make: Make, runs: Path):
    make("luna", 0.4)
    make("luna", 0.6, seed=2)
    figure = Figure()
    figures.curves(figure, rows(runs), "listops")
    (axes,) = figure.axes
    (line,) = axes.get_lines()
    assert list(line.get_xdata()) == [50, 100]
    assert list(line.get_ydata()) == pytest.approx([25, 50])


def test_accuracy_against_compute_places_every_row(make: Make, runs: Path):
    make("luna", 0.4, compute__flops=2_000_000_000)
    make("linear", 0.5, compute__flops=1_000_000_000)
    figure = Figure()
    figures.compute(figure, rows(runs), "listops")
    (axes,) = figure.axes
    points = [(c.lines[0].get_xdata()[0], c.lines[0].get_ydata()[0]) for c in axes.containers]
    assert sorted(points) == [(pytest.approx(1), pytest.approx(50)), (2, pytest.approx(40))]
    assert {t.get_text() for t in axes.texts} == {"luna", "linear"}


def test_capacity_is_a_line_per_method_over_the_columns(make: Make, runs: Path, tmp_path: Path):
    for pairs in (16, 32):
        for seed in (1, 2):
            make("luna", 0.8 - pairs / 100 + seed / 50, seed=seed, pairs=pairs)
            make("softmax", 1.0, seed=seed, pairs=pairs)
    found = table(runs, columns="task.pairs")
    figure = Figure()
    figures.capacity(figure, found.rows, "pairs=16")
    (axes,) = figure.axes
    best, other = (list(line.lines[0].get_ydata()) for line in axes.containers)
    assert best == [100, 100]
    assert other == pytest.approx([67, 51])
    assert list(axes.containers[0].lines[0].get_xdata()) == [16, 32]
    assert [p.name for p in figures.write_figures([found], tmp_path / "f")] == [
        "t-pairs.png",
        "t-pairs.pdf",
    ]


def test_capacity_is_not_drawn_against_words(make: Make, runs: Path, tmp_path: Path):
    for source in ("generated", "tiny"):
        make("luna", 0.5, source=source)
    assert figures.write_figures([table(runs, columns="task.source")], tmp_path) == []


def test_runs_without_a_curve_are_left_out(make: Make, runs: Path, tmp_path: Path):
    for seed in (1, 2):
        make("luna", 0.4, seed=seed)
    make("linear", 0.5).with_name("metrics.csv").unlink()
    found = table(runs)
    figure = Figure()
    figures.curves(figure, found.rows, "listops")
    assert [text.get_text() for text in figure.axes[0].texts] == ["luna"]
    for curve in runs.rglob("metrics.csv"):
        curve.unlink()
    written = {p.stem for p in figures.write_figures([table(runs)], tmp_path)}
    assert written == {"t-listops-compute"}


def test_from_the_command_line_and_the_same_files_again(make: Make, runs: Path, tmp_path: Path):
    for m in (4, 8):
        make("luna", 0.4 + m / 100, options={"M": m})
    results = tmp_path / "results"
    records.export([runs], results / "records")
    (results / "tables.yaml").write_text("- {name: m, title: Against M}\n", encoding="utf-8")
    assert main(["figures", "records", "--results", str(results)]) == 0
    written = {p.name for p in (results / "figures").iterdir()}
    assert written == {f"m-listops-{what}.{end}" for what in ("M", "compute", "curves")
                       for end in ("png", "pdf")}  # fmt: skip
    found = table(runs, name="m", title="Against M")
    again = figures._save(tmp_path / "again", figures.compute, found.rows, "listops", found)
    for path in again:
        before = results / "figures" / f"m-listops-compute{path.suffix}"
        assert path.read_bytes() == before.read_bytes()


def test_rows_of_one_attention_are_named_by_their_options(make: Make, runs: Path):
    make("luna", 0.4, options={"kernel": "$x^$"})
    make("luna", 0.5)
    found = rows(runs)
    assert figures._names(found) == ["kernel=$x^$", "kernel=learned"]
    for picture in (figures.compute, figures.curves):
        figure = Figure()
        picture(figure, found, "listops")
        figure.draw_without_rendering()  # names are no formulas
    assert len({style["color"] for style in figures._styles(found)}) == 2
    make("linear", 0.5)
    assert sorted(figures._names(rows(runs))) == ["linear", "luna kernel=$x^$",
                                                  "luna kernel=learned"]  # fmt: skip


def test_of_many_curves_the_few_that_matter_are_named(make: Make, runs: Path):
    names = sorted(styles.METHODS)
    for i, name in enumerate(names):
        make(name, 0.3 + i / 100)
    figure = Figure()
    figures.curves(figure, rows(runs), "listops")
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert {"luna", "softmax", names[-1], names[0]} <= set(texts)
    assert f"grey: {len(names) - len(texts) + 1} others" in texts


def test_a_table_against_another_has_a_point_per_method(make: Make, runs: Path, tmp_path: Path):
    for place, method in enumerate(("softmax", "luna", "linear", "t2r", "performer")):
        for seed in (1, 2):
            make(method, 0.9 - place / 10 + seed / 100, seed=seed, pairs=16, task="recall")
            make(method, 0.5 - place / 100, seed=seed)
    names = {"name": "probe", "title": "Probe", "columns": "task.pairs", "against": "short"}
    specs = [TableSpec(**names, where={"task": "recall"}),
             TableSpec(name="short", title="Short", where={"task": "listops"})]  # fmt: skip
    probe, _ = build_all(specs, records.load_records([runs]), runs)
    assert {p.name for p in figures.write_figures([probe], tmp_path)} >= {"probe-against-short.png"}
    figure = Figure()
    agreement.draw_agreement(figure, probe.agreements[0])
    (axes,) = figure.axes
    assert {t.get_text() for t in axes.texts} == {"softmax", "luna", "linear", "t2r", "performer"}
    (x, *_), (y, *_) = axes.containers[0].lines[0].get_data()
    assert (x, y) == pytest.approx((91.5, 50))
