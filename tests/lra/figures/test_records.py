"""Figures of records: what is drawn, and that the same records give the same files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lra import records
from lra.cli import main
from lra.config import CONFIGS
from lra.figures import draw
from lra.figures import records as figures
from lra.report import looks
from lra.report.leaderboard import build
from lra.report.specs import Spec

from ..synthetic import Make

mpl = pytest.importorskip("matplotlib")

from matplotlib.figure import Figure  # noqa: E402
from matplotlib.text import Text  # noqa: E402
from matplotlib.transforms import Bbox  # noqa: E402


def rows(runs: Path, published: str | None = None):
    found = build(Spec(name="t", title="T", published=published), records.load([runs]))
    return found.rows


def test_a_sweep_is_drawn_against_its_option_with_published_values_apart(make: Make, runs: Path):
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


def test_published_values_far_off_have_a_panel_of_the_same_scale(make: Make, runs: Path):
    for m in (4, 8, 16):
        make("luna", 0.15 + m / 1000, task="image", options={"M": m})
    figure = Figure()
    figures.sweep(figure, rows(runs, "M"), "image")
    above, below = figure.axes
    assert [axes.get_legend_handles_labels()[1] for axes in (above, below)] == [
        ["published (another protocol)"], ["measured"]
    ]  # fmt: skip
    spans = [high - low for low, high in (axes.get_ylim() for axes in (above, below))]
    assert spans[0] == pytest.approx(spans[1])
    for axes in (above, below):
        low, high = axes.get_ylim()
        assert all(low < y < high for line in axes.lines[:1] for y in line.get_ydata())


def test_the_heading_says_what_was_done_and_how_exact_it_is(make: Make, runs: Path):
    make("luna", 0.5)
    make("luna", 0.5, seed=2)
    make("linear", 0.5)
    table = build(Spec(name="t", title="Some title"), records.load([runs]))
    assert figures._heading(table, table.rows, "listops").splitlines() == [
        "listops: Some title",
        f"100 steps of 32; {table.conditions}",
        "1 to 2 seeds; one standard error of 2,000 test examples is 1.1 points",
        "data: re-generated, not the released files",
    ]


def test_one_answer_to_everything_is_marked_where_it_is_in_sight(make: Make, runs: Path):
    make("luna", 0.12)
    make("linear", 0.09)
    figure = Figure()
    figures.compute(figure, rows(runs), "listops")
    (axes,) = figure.axes
    assert [list(line.get_ydata()) for line in axes.lines if line.get_linestyle() == "--"] == [
        [pytest.approx(10)] * 2
    ]
    assert "one answer\nto everything" in {t.get_text() for t in axes.texts}


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


def test_only_numbers_are_a_sweep(make: Make, runs: Path):
    make("luna", 0.4, options={"kernel": "rff"})
    make("luna", 0.5)
    assert figures.swept(rows(runs)) == []
    make("linear", 0.5)
    assert figures.swept(rows(runs)) == []


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


def test_a_new_method_moves_no_colour_and_takes_none():
    """Its name alone decides on its look, and no method of the list has that look."""
    known = [SimpleNamespace(attention=name) for name in looks.KNOWN]
    before = looks.looks(known)
    added = [SimpleNamespace(attention=name) for name in ("aaa", "mine", "zzz")]
    assert looks.looks([*added, *known])[len(added) :] == before
    assert looks.looks([*known, *added[::-1]])[::-1][: len(added)] == looks.looks(added)
    assert all(look not in before for look in looks.looks(added))
    assert len({str(look) for look in before}) == len(known)


def test_names_avoid_each_other(make: Make, runs: Path):
    """Even where all methods have one accuracy and most the same cost."""
    methods = [p.stem for p in (CONFIGS / "attention").glob("*.yaml")]
    for i, name in enumerate(sorted(methods)):
        make(name, 0.4, compute__flops=10**8 * (1 + i % 5))
    figure = Figure(figsize=(7.6, 5), layout="constrained")
    figures.compute(figure, rows(runs), "listops")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    frame = axes.get_window_extent().padded(3)
    boxes = [Text.get_window_extent(t) for t in axes.texts]  # without the line to its point
    assert len(boxes) == len(methods)
    for i, one in enumerate(boxes):
        assert frame.x0 < one.x0 < one.x1 < frame.x1
        for other in boxes[:i]:
            both = Bbox.intersection(one, other)
            assert both is None or both.width * both.height < 0.1 * one.width * one.height


def test_names_at_the_ends_of_lines_keep_their_order(make: Make, runs: Path):
    for name, accuracy in (("luna", 0.40), ("linear", 0.40), ("softmax", 0.41), ("rff", 0.2)):
        make(name, accuracy)
    figure = Figure(figsize=(7.6, 4.4), layout="constrained")
    figures.curves(figure, rows(runs), "listops")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    found = sorted(axes.texts, key=lambda t: Text.get_window_extent(t).y0)
    assert [found[0].get_text(), found[-1].get_text()] == ["rff", "softmax"]
    for below, above in pairwise(found):
        assert Text.get_window_extent(below).y1 < Text.get_window_extent(above).y1 - 5


def test_rows_of_one_attention_are_named_by_their_options(make: Make, runs: Path):
    make("luna", 0.4, options={"kernel": "$x^$"})
    make("luna", 0.5)
    found = rows(runs)
    assert figures._names(found) == ["kernel=$x^$", "kernel=learned"]
    for picture in (figures.compute, figures.curves):
        figure = Figure()
        picture(figure, found, "listops")
        figure.draw_without_rendering()  # names are no formulas
    assert len({look["color"] for look in figures._looks(found)}) == 2
    make("linear", 0.5)
    assert sorted(figures._names(rows(runs))) == ["linear", "luna kernel=$x^$",
                                                  "luna kernel=learned"]  # fmt: skip


def test_colour_shape_and_filling_stand_for_what_differs(make: Make, runs: Path):
    for attention in ("luna", "linear"):
        for dwc in ("none", "conv1d"):
            for lr in (0.1, 0.01):
                make(attention, 0.4, options={"dwc": dwc}, lr=lr)
    found = build(Spec(name="t", title="T", vary=["protocol.recipe.lr"]), records.load([runs])).rows
    for key, look in (("marker", "dwc"), ("fillstyle", "lr")):
        seen = {
            (row.options[look], its[key])
            for row, its in zip(found, looks.looks(found), strict=True)
        }
        assert len(seen) == 2, f"{key} stands for {look} alone"
    colours = {
        (row.attention, its["color"]) for row, its in zip(found, looks.looks(found), strict=True)
    }
    assert len(colours) == 2
    explained = [label for label, _ in looks.keys(found, ("marker", "fillstyle"))]
    assert sorted(explained) == ["dwc=conv1d", "dwc=none", "lr=0.01", "lr=0.1"]


def test_of_many_curves_the_few_that_matter_are_named(make: Make, runs: Path):
    names = sorted(looks.KNOWN)
    for i, name in enumerate(names):
        make(name, 0.3 + i / 100)
    figure = Figure()
    figures.curves(figure, rows(runs), "listops")
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert {"luna", "softmax", names[-1], names[0]} <= set(texts)
    assert f"grey: {len(names) - len(texts) + 1} others" in texts


def test_pdf_is_written_on_request_and_is_the_same_every_time(tmp_path: Path):
    def fill(figure: Figure) -> None:
        figure.subplots().plot([1, 2])

    def once(stem: Path) -> bytes:
        with draw.also_pdf():
            return draw.save_figure(stem, fill, size=(2, 2))[-1].read_bytes()

    assert once(tmp_path / "a") == once(tmp_path / "b")
    assert len(draw.save_figure(tmp_path / "c", fill, size=(2, 2))) == 2
