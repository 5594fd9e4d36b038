"""Figures of tables: what is drawn is what the table says."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pandas as pd
import pytest

from lra.cli import main
from lra.figures import tables as figures
from lra.report.build import build_all
from lra.report.specs import TableSpec
from lra.report.table import Table

from ..synthetic import Make, frame, table

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure


def filled(fill, table: Table, column: str = "listops"):
    """The axes of a figure of a table."""
    figure = Figure()
    fill(figure, table, column)
    return figure.axes


def written_grids(table: Table, folder: Path) -> list[Path]:
    return [p for grid in figures.grids_to_draw(table) for p in grid.write(table, folder)]


def test_compute_places_every_row_and_its_front(make: Make, runs: Path):
    make("luna", 0.4, compute__flops=2_000_000_000)
    make("linear", 0.5, compute__flops=1_000_000_000)
    make("softmax", 0.6, compute__flops=4_000_000_000)
    (axes,) = filled(figures.compute, table(runs))
    points = sorted((c.lines[0].get_xdata()[0], c.lines[0].get_ydata()[0]) for c in axes.containers)
    assert points == [(1, 50), (2, 40), (4, 60)]
    front = axes.get_lines()[-1]
    assert list(front.get_xdata()) == [1, 4, 4], "luna costs more than linear and is worse"
    assert {text.get_text() for text in axes.texts} == {
        "LUNA as published",
        "Linear attention",
        "Softmax",
    }


def test_a_curve_is_a_line_for_each_seed(make: Make, runs: Path, monkeypatch):
    make("luna", 0.4)
    make("luna", 0.6, seed=2)
    assert not figures.curves_of(table(runs), "listops"), "two points are no curve"
    monkeypatch.setattr(figures, "POINTS", 2)
    (axes,) = filled(figures.curves, table(runs))
    lines = axes.get_lines()
    assert [list(line.get_xdata()) for line in lines] == [[50, 100]] * 2
    assert [list(line.get_ydata()) for line in lines] == [[20, 40], [30, 60]]


def test_every_name_has_the_colour_of_its_line(make: Make, runs: Path):
    """Rows of one method differ in dashes, and no two lines look the same."""
    for i, output in enumerate((True, False, "exp")):
        for pairs in (16, 32):
            options = {"M": 8, "L": 8, "nonneg": output}
            make("luna", 0.5 + i / 10, pairs=pairs, options=options)
            make("linear", 0.4, pairs=pairs) if i == 0 else None
    made = table(runs, columns="task.pairs")
    bounds = {"pairs=16": [90.0, 50.0], "pairs=32": [80.0, 40.0], "bound": [True, False]}
    made.rules = pd.DataFrame(bounds, ["Bayes", "one answer"])
    made.cells["rule"] = 45.0
    (axes,) = filled(figures.by_column, made, "")
    dotted = [list(line.get_ydata()) for line in axes.get_lines() if line.get_linestyle() == ":"]
    assert dotted == [[90, 80]], "the bound alone, of all rules"
    (one,) = filled(figures.by_column, dataclasses.replace(made, columns=["pairs=16"]), "")
    assert [text.get_text().strip() for text in one.texts] == ["best rule", "Bayes, the bound"]
    looks = {
        (line.get_color(), str(line._dash_pattern))
        for line in (container.lines[0] for container in axes.containers)
    }
    assert len(looks) == 4


def test_a_heat_map_shows_the_cells_and_those_that_are_missing(
    make: Make, runs: Path, tmp_path: Path, drawn: list[Figure]
):
    for m, size, accuracy in ((8, 8, 0.4), (16, 8, 0.5), (8, 4, 0.2)):
        make("luna", accuracy, options={"M": m, "L": size})
    make("luna", 0.6, seed=2, options={"M": 16, "L": 8})
    words = {"M": "projections of a token"}
    made = table(runs, vary=["attention.M", "attention.L"], words=words)
    assert {path.name for path in written_grids(made, tmp_path)} == {
        "t-listops-grid.png",
        "t-listops-grid.pdf",
    }
    axes, bar = drawn[0].axes
    texts = [(text.get_text(), text.xy) for text in axes.texts]
    assert texts == [
        ("20.0", (0.5, 0.5)),
        ("(1)", (0.5, 0.5)),
        ("40.0", (1.5, 0.5)),
        ("(1)", (1.5, 0.5)),
        ("no run", (0.5, 1.5)),
        ("55.0", (1.5, 1.5)),
        ("± 7.1 (2)", (1.5, 1.5)),
    ]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["4", "8"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["8", "16"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("L", "projections of a token")
    low, high = axes.get_ylim()
    assert low > high, "the first row on top, as in the terminal"
    assert bar.get_ylim() == (10, 55), "from one answer to everything to the best cell"
    (picture,) = (part for part in axes.collections if part.get_array() is not None)
    assert picture.get_array().mask.tolist() == [[False, False], [True, False]]


def test_attentions_have_a_panel_each(make: Make, runs: Path, tmp_path: Path, drawn: list[Figure]):
    for attention, m, size in itertools.product(("luna", "linear"), (8, 16), (4, 8)):
        options = {"M": m, "L": size}
        make(attention, 0.4 + 0.1 * (attention == "luna"), options=options)
    made = table(runs, vary=["attention.M", "attention.L"])
    written_grids(made, tmp_path)
    (figure,) = drawn
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["luna", "linear", ""]
    limits = {part.get_clim() for axes in figure.axes[:2] for part in axes.collections}
    assert limits == {(10, 50)}, "one scale for both"


def test_many_cells_keep_their_numbers(make: Make, runs: Path, tmp_path: Path, drawn: list[Figure]):
    for m, size in itertools.product(range(1, 3), range(1, 13)):
        make("luna", 0.4, options={"M": m, "L": size})
    written_grids(table(runs), tmp_path)
    axes = drawn[0].axes[0]
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == 24
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


@pytest.mark.parametrize(
    ("findings", "drawn", "problem"),
    [
        (
            "{listops-scores: LUNA is ahead of linear attention}",
            ["t-listops-scores-dark", "t-listops-scores-light"],
            "",
        ),
        ("{listops-score: LUNA is ahead}", [], "finding for a figure that it does not give: "),
        ("{}", [], "has `findings`"),
    ],
)
def test_records_draw_the_figures_with_a_finding(
    findings: str, drawn: list[str], problem: str, make: Make, runs: Path, tmp_path: Path, capsys
):
    results = tmp_path / "results"
    for attention, accuracy in (("luna", 0.5), ("linear", 0.4)):
        make(attention, accuracy)
    results.mkdir()
    runs.rename(results / "records")
    spec = f"- {{name: t, title: T, findings: {findings}}}"
    (results / "tables.yaml").write_text(spec, encoding="utf-8")
    words = ["figures", "records", "--results", str(results)]
    assert main(words) == (2 if problem else 0)
    assert problem in capsys.readouterr().err
    assert sorted(p.stem for p in results.rglob("*.png")) == drawn


def test_every_figure_of_a_table_is_written(make: Make, runs: Path, tmp_path: Path):
    methods = ("luna", "linear", "softmax", "cosformer", "t2r")
    for i, method in enumerate(methods):
        for pairs in (16, 32):
            make(method, 0.5 + i / 20, task="recall", pairs=pairs)
        make(method, 0.6 - i / 20)
    specs = [
        TableSpec(
            name="probe",
            title="P",
            where={"task": "recall"},
            columns="task.pairs",
            against="short",
            effects=True,
        ),
        TableSpec(name="short", title="S", where={"task": "listops"}),
    ]
    written = figures.write_figures(build_all(specs, frame(runs), runs), tmp_path)
    assert {path.name for path in written} == {
        f"{stem}.{ending}"
        for stem in (
            "probe-against-short",
            "probe-effects",
            "probe-pairs",
            "short-listops-scores",
            "short-listops-compute",
        )
        for ending in ("png", "pdf")
    }
    out = tmp_path / "own"
    assert main(["figures", "--runs", str(runs), "--out", str(out)]) == 0
    assert len(list(out.glob("*-listops-scores.png"))) == 1
    make("luna", 0.05, task="image")
    make("linear", 0.05, task="image")
    floor = table(runs, where={"task": "image"})
    assert figures.write_figures([floor], tmp_path) == [], "where nothing was learned"
