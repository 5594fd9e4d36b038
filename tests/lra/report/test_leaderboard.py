"""Which runs may share a table, and what its cells say."""

from __future__ import annotations

from pathlib import Path

import pytest

from lra import records
from lra.config import UserError
from lra.report import published
from lra.report.leaderboard import FIVE, _cell
from lra.report.render import markdown
from lra.report.specs import Spec
from lra.report.table import Table

from ..synthetic import Make, table


def row(found: Table, label: str):
    return next(r for r in found.rows if r.label == label)


def test_a_cell_is_mean_deviation_and_seeds(make: Make, runs: Path):
    for seed, accuracy in enumerate((0.40, 0.41, 0.42), 1):
        make("luna", accuracy, seed=seed)
    make("linear", 0.3)
    found = table(runs)
    cell = row(found, "luna").cells["listops"]
    assert (cell.mean, cell.deviation) == pytest.approx((41, 1))
    assert [r.label for r in found.rows] == ["luna", "linear"]
    text = markdown(found, runs)
    assert "[**41.0 ± 1.0 (3)**](#luna-listops)" in text
    assert "[30.0 (1)](#linear-listops)" in text
    assert "Rows of a single seed are not tested" in text


def test_an_average_needs_all_five_tasks(make: Make, runs: Path):
    for i, task in enumerate(FIVE):
        make("luna", 0.1 * (i + 1), task=task)
        if task != "image":
            make("softmax", 0.9, task=task)
    found = table(runs)
    assert row(found, "luna").summary["average"] == pytest.approx(30)
    assert row(found, "softmax").summary["average"] is None
    text = markdown(found, runs)
    assert "| 30.0 | 5/5 |" in text
    assert "| – | 4/5 |" in text
    assert found.rows[0].label == "luna"  # a row without an average is ranked behind


def test_a_sixth_task_enters_no_average(make: Make, runs: Path):
    for task in (*FIVE, "pathx"):
        make("luna", 0.9 if task == "pathx" else 0.5, task=task)
    assert row(table(runs), "luna").summary["average"] == pytest.approx(50)


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ({}, {"budget": 0.1}, r"budget is 0\.02 \(luna\) or 0\.1 \(linear\)"),
        ({}, {"source": "tiny"}, r"on listops, data\.source is generated \(luna\) or tiny"),
        ({}, {"lr": 0.1}, r"on listops, protocol\.recipe\.lr is 0\.002 \(luna\) or 0\.1"),
        ({}, {"model": "base"}, r"model is base \(linear\) or small \(luna\)"),
        ({}, {"version": 2}, r"protocol\.version is 1"),
        ({}, {"test__examples": 100}, r"test\.examples is 100 \(linear\) or 2000"),
        ({}, {"compute__budget": {"reference": "softmax", "tolerance": {}}}, r"budget\.reference"),
        ({"task": "text"}, {"budget": 0.1}, "budget is"),  # across tasks too
    ],
)
def test_mixtures_are_refused_with_what_differs(
    make: Make, runs: Path, first: dict, second: dict, told: str
):
    make("luna", 0.4, **first)
    make("linear", 0.4, **second)
    with pytest.raises(UserError, match=told):
        table(runs)


def test_everything_that_differs_is_listed(make: Make, runs: Path):
    make("luna", 0.4)
    make("linear", 0.4, source="tiny", lr=0.1)
    with pytest.raises(UserError, match=r"(?s)data\.source.*data\.fingerprint.*recipe\.lr"):
        table(runs)


def test_the_data_of_different_tasks_may_differ(make: Make, runs: Path):
    make("luna", 0.4, task="listops", source="generated")
    make("luna", 0.4, task="image", source="tfds")
    assert table(runs).tasks == ["listops", "image"]


def test_where_narrows_a_table(make: Make, runs: Path):
    make("luna", 0.4)
    make("luna", 0.5, budget=0.1)
    make("linear", 0.5, budget=0.1)
    assert len(table(runs, where={"budget": 0.1}).rows) == 2
    assert len(table(runs, where={"budget": 0.1, "attention": "luna"}).rows) == 1


def test_where_on_an_option_of_one_attention_asks_no_other(make: Make, runs: Path):
    make("luna", 0.4)
    make("luna", 0.5, options={"M": 4})
    make("linear", 0.5, options={"M": 99})
    found = table(runs, where={"luna.M": 8})
    assert [r.label for r in found.rows] == ["linear", "luna"]
    found = table(runs, where={"attention.M": [4, 99]})
    assert [r.label for r in found.rows] == ["linear", "luna M=4"]  # 4 is not what it ships with


def test_where_refuses_a_key_that_nothing_has(make: Make, runs: Path):
    make("luna", 0.4)
    with pytest.raises(UserError, match="no record has a 'protocl'"):
        table(runs, where={"protocl": "luna"})


def test_rows_of_one_attention_are_named_by_what_differs_and_sorted_by_it(make: Make, runs: Path):
    for m in (32, 4, 8, 16):
        make("luna", 0.1 + m / 100, options={"M": m})
    found = table(runs, published="M")
    assert [r.label for r in found.rows] == ["luna M=4", "luna M=8", "luna M=16", "luna M=32"]
    make("softmax", 0.2)
    assert {r.label for r in table(runs).rows} >= {"softmax", "luna M=4"}


def test_a_setting_may_vary_where_the_table_says_so(make: Make, runs: Path):
    make("luna", 0.4, lr=0.002)
    make("luna", 0.5, lr=0.1)
    make("linear", 0.5, lr=0.1)
    found = table(runs, vary=["protocol.recipe.lr"])
    assert {r.label for r in found.rows} == {"luna lr=0.002", "luna lr=0.1", "linear lr=0.1"}


def test_seeds_of_different_settings_never_share_a_cell(make: Make, runs: Path):
    make("luna", 0.4, seed=1)
    make("luna", 0.5, seed=2, lr=0.1)
    with pytest.raises(UserError, match="differ in settings that no row shows"):
        _cell(Spec(name="t", title="T"), records.load([runs]))


@pytest.mark.parametrize(("accuracy", "best"), [(0.1, False), (0.11, True)])
def test_none_is_best_where_all_give_one_answer(
    make: Make, runs: Path, accuracy: float, best: bool
):
    """The larger class is a tenth of the fixture's test set."""
    for seed in (1, 2):
        make("luna", accuracy, seed=seed)
    make("linear", 0.1)
    told = table(runs)
    luna_ = next(row for row in told.rows if row.attention == "luna")
    assert luna_.cells["listops"].best == best
    assert any("no row is above that" in note for note in told.notes) != best


def test_the_lead_of_a_single_seed_is_not_marked(make: Make, runs: Path):
    make("luna", 0.5)
    for seed in (1, 2):
        make("linear", 0.4, seed=seed)
    assert not any(cell.best for _, _, cell in table(runs).cells())


def test_a_table_says_what_it_cannot_show_and_hides_speeds(make: Make, runs: Path):
    make("luna", 0.4, steps_per_second=123.4)
    text = markdown(table(runs, caveat="One *seed*.", speed=False), runs)
    assert "**One \\*seed\\*.**" in text
    assert "123.4" not in text
    assert "the runs shared their machine" in text


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


def test_speeds_of_different_machines_are_not_compared(make: Make, runs: Path):
    make("luna", 0.4, steps_per_second=123.4)
    assert "123.4" in markdown(table(runs), runs)
    make("linear", 0.4, machine__device="another CPU")
    text = markdown(table(runs), runs)
    assert "123.4" not in text
    assert "they come from different machines" in text


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


def test_the_published_ablations_are_found_by_their_options(make: Make, runs: Path):
    make("luna", 0.5, task="image", options={"M": 32})
    make("luna", 0.5, task="listops", options={"M": 32})
    cells = table(runs, published="M").rows[0].cells
    assert cells["image"].published.value == 59.15
    assert cells["listops"].published is None
    assert published.ablation("kernel", "image", {"M": 8, "L": 8, "kernel": "rff"}).value == 35.72
    assert published.ablation("M", "image", {"M": 8, "L": 4}) is None


def test_the_published_table_is_the_paper_s():
    printed = {"luna": 65.44, "softmax": 58.14, "lotformer": 62.9, "polaformer": 60.72}
    for name, average in printed.items():
        values = [published.lra("lra", name, task).value for task in FIVE]
        assert sum(values) / 5 == pytest.approx(average, abs=0.0051)
    rows = published.facts()["tables"]["lra"]["rows"]
    assert len(rows) == 18
    assert {r["source"] for t in published.facts()["tables"].values() for r in t["rows"].values()} \
        <= set(published.sources())  # fmt: skip
