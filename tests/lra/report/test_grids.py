"""Tables whose rows differ in two settings, as grids."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from lra.cli import main
from lra.report.grids import DARK, LIGHT, Grid, colour_of, grids_of, ink_on, scale_of

from ..synthetic import Make, table

LR = "protocol.recipe.lr"
ML = ["attention.M", "attention.L"]


def cross(make: Make) -> None:
    """M at L = 8 and L at M = 8, of which one cell has two seeds."""
    for m, size, accuracy in ((8, 8, 0.4), (16, 8, 0.5), (128, 8, 0.3), (8, 4, 0.2)):
        make("luna", accuracy, options={"M": m, "L": size})
    make("luna", 0.6, seed=2, options={"M": 16, "L": 8})


def scores(grid: Grid) -> dict[tuple[str, str], float]:
    return {key: round(cell.score, 6) for key, cell in grid.cells.items()}


@pytest.mark.parametrize("vary", [[], ML])
def test_two_settings_in_which_rows_differ_make_a_grid(make: Make, runs: Path, vary: list[str]):
    """Also without naming them, where all rows have one attention."""
    cross(make)
    (grid,) = grids_of(table(runs, vary=vary))
    assert (grid.down, grid.across, grid.column, grid.others) == ("M", "L", "listops", "")
    assert grid.rows == ["8", "16", "128"], "by size, not by the alphabet"
    assert grid.columns == ["4", "8"]
    assert scores(grid) == {("8", "8"): 40, ("16", "8"): 55, ("128", "8"): 30, ("8", "4"): 20}
    texts = grid.texts()
    assert texts.loc["M=16", "L=8"] == "55.0 ± 7.1 (2)"
    assert texts.loc["M=16", "L=4"] == "–", "a missing cell is no number"


def test_the_first_setting_that_is_named_goes_down(make: Make, runs: Path):
    cross(make)
    (grid,) = grids_of(table(runs, vary=ML[::-1]))
    assert (grid.down, grid.across) == ("L", "M")
    assert scores(grid)["4", "8"] == 20


def test_rows_that_differ_in_more_have_a_grid_each(make: Make, runs: Path):
    """Attentions are never averaged; a row without the setting is in no grid."""
    for dwc, lr in itertools.product(("none", "conv1d"), (0.001, 0.002)):
        for attention, accuracy in (("luna", 0.5), ("linear", 0.3)):
            make(attention, accuracy + lr, options={"dwc": dwc}, lr=lr)
    found = {g.others: g for g in grids_of(table(runs, vary=["attention.dwc", LR]))}
    assert set(found) == {"luna", "linear"}
    assert scores(found["luna"])["conv1d", "0.002"] == pytest.approx(50.2)
    assert not [*grids_of(table(runs, vary=[LR]))], "two attentions, and one setting is named"
    make("luna", 0.9, options={"M": 16, "dwc": "none"}, lr=0.001)
    found = {g.others: g for g in grids_of(table(runs, vary=["attention.dwc", LR]))}
    assert set(found) == {"luna M=8", "linear"}, "M=16 has one cell, which is no grid"


def test_what_is_no_grid(make: Make, runs: Path):
    for m in (8, 16, 32):  # at constant width: of the other six cells none can be
        make("luna", 0.4, options={"M": m, "L": 64 // m})
    assert not [*grids_of(table(runs, vary=ML))]
    one = table(runs, where={"attention.M": 8})
    assert not [*grids_of(one)]


def test_each_column_has_its_grid(make: Make, runs: Path):
    for task, m, size in itertools.product(("listops", "image"), (8, 16), (4, 8)):
        make("luna", 0.4, task=task, options={"M": m, "L": size})
    assert [grid.column for grid in grids_of(table(runs))] == ["listops", "image"]


def test_colours_begin_at_one_answer_to_everything(make: Make, runs: Path):
    """From the worst cell to the best, a spread of seeds would look like a mountain."""
    cross(make)
    (grid,) = grids_of(table(runs))
    scale = scale_of([grid])
    assert scale == pytest.approx((10, 55)), "the floor of synthetic runs, and the best cell"
    ends = [f"#{bytes(end).hex()}" for end in (LIGHT, DARK)]
    assert [colour_of(score, scale) for score in scale] == ends
    assert [ink_on(end) for end in ends] == ["#000000", "#ffffff"]
    assert colour_of(5.0, (5.0, 5.0)) == ends[0], "no spread at all"


def ink_contrast(colour: str) -> float:
    """WCAG's contrast of a colour to its ink."""

    def luminance(of: str) -> float:
        parts = (part / 255 for part in bytes.fromhex(of[1:]))
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([luminance(colour), luminance(ink_on(colour))])
    return (high + 0.05) / (low + 0.05)


def test_the_numbers_of_every_cell_can_be_read():
    """WCAG asks for 4.5; lightness alone orders the cells."""
    colours = [colour_of(share, (0.0, 1.0)) for share in (i / 100 for i in range(101))]
    assert min(map(ink_contrast, colours)) > 4.5
    greys = [sum(bytes.fromhex(colour[1:])) for colour in colours]
    assert greys == sorted(greys, reverse=True)


def test_the_terminal_shows_it(
    make: Make, runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    cross(make)
    words = ["table", "--runs", str(runs), "--vary", *ML]
    assert main(words) == 0
    shown = capsys.readouterr().out.split("listops: M x L")[1]
    assert re.search(r"\n +L=4 +L=8\n", shown)
    assert re.search(r"\nM=16 +– 55\.0 ± 7\.1 \(2\)\n", shown)
    assert "–: no run." in shown
    assert "\x1b" not in shown, "no colours in a pipe"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    assert main(words) == 0
    assert f"48;2;{';'.join(map(str, DARK))}m55.0 ± 7.1 (2)" in capsys.readouterr().out
