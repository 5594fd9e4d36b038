"""Cells, the best of a column and its ties, published numbers beside."""

from __future__ import annotations

from pathlib import Path

import pytest

from lra.report.render import markdown

from ..synthetic import Make, row, table


@pytest.mark.parametrize(("accuracy", "best"), [(0.1, False), (0.11, True)])
def test_none_is_best_where_all_give_one_answer(
    make: Make, runs: Path, accuracy: float, best: bool
):
    """The larger class is a tenth of the fixture's test set."""
    for seed in (1, 2):
        make("luna", accuracy, seed=seed)
    make("linear", 0.1)
    found = table(runs)
    assert row(found, "luna").cells["listops"].best == best
    assert any("no row is above that" in note for note in found.notes) != best


def test_the_lead_of_a_single_seed_is_not_marked(make: Make, runs: Path):
    make("luna", 0.5)
    for seed in (1, 2):
        make("linear", 0.4, seed=seed)
    assert not any(cell.best for _, _, cell in table(runs).cells())


def test_ties_with_the_best(make: Make, runs: Path):
    for seed in (1, 2, 3):
        make("luna", 0.400 + seed / 200, seed=seed)
        make("linear", 0.398 + seed / 200, seed=seed)
        make("softmax", 0.300 + seed / 200, seed=seed)
    found = table(runs)
    cells = {r.label: r.cells["listops"] for r in found.rows}
    assert cells["luna"].best
    assert cells["linear"].tie is not None
    assert cells["linear"].tie > 0.05
    assert not cells["linear"].best
    assert cells["softmax"].tie is None
    assert "](#linear-listops) ≈ |" in markdown(found, runs)


def test_published_values_stand_beside_and_rank_nothing(make: Make, runs: Path):
    make("luna", 0.50, task="image")
    make("linear", 0.60, task="image")  # published below luna's 64.32
    found = table(runs, published="lra")
    text = markdown(found, runs)
    ranking, _, beside = text.partition("## Beside the published numbers")
    assert "64.32" not in ranking
    assert ranking.index("linear") < ranking.index("luna]" if "luna]" in ranking else "| luna |")
    assert "| luna | 50.0 / 64.32 (-14.3) | luna |" in beside
    assert "| linear | 60.0 / 42.34 (+17.7) | official |" in beside
    assert "the 2020 leaderboard" in beside
