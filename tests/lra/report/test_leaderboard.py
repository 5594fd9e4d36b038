"""Which runs may share a table, and what its cells say."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from lra.base.config import UserError
from lra.report.leaderboard import FIVE, build
from lra.report.render import markdown
from lra.report.specs import TableSpec
from lra.report.table import cells_by_row
from lra.results import record as records

from ..synthetic import Make, row, table


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
    assert "Rows with a single seed are not tested" in text


def test_an_average_is_over_five_tasks_and_needs_all_of_them(make: Make, runs: Path):
    for i, task in enumerate(FIVE):
        make("luna", 0.1 * (i + 1), task=task)
        if task != "image":
            make("softmax", 0.9, task=task)
    make("luna", 0.9, task="pathx")  # not one of the five
    found = table(runs)
    assert row(found, "luna").summary["average"] == pytest.approx(30)
    assert row(found, "softmax").summary["average"] is None
    text = markdown(found, runs)
    assert "| 30.0 | 5/5 |" in text
    assert "| – | 4/5 |" in text
    assert found.rows[0].label == "luna"  # a row without an average is ranked behind


def test_rows_of_one_attention_are_named_and_sorted_by_options(make: Make, runs: Path):
    for m in (32, 4, 8, 16):
        make("luna", 0.1 + m / 100, options={"M": m})
    found = table(runs, published="M")
    assert [r.label for r in found.rows] == ["luna M=4", "luna M=8", "luna M=16", "luna M=32"]
    make("softmax", 0.2)
    assert {r.label for r in table(runs).rows} >= {"softmax", "luna M=4"}


def test_long_names_leave_out_usual_options(make: Make, runs: Path):
    make("luna", 0.5)
    for more in ({"nonneg": "exp"}, {"M": 64, "L": 1, "hidden": 16, "nonneg": True}):
        make("luna", 0.4, options=more)
    found = table(runs)
    assert {r.label for r in found.rows} == {"luna", "luna nonneg=exp", "luna M=64 L=1 hidden=16"}
    assert row(found, "luna").options == {"L": 8, "M": 8, "hidden": 64, "nonneg": True}
    assert "Names leave out options that have their usual value." in found.notes


def test_a_setting_may_vary_where_the_table_says_so(make: Make, runs: Path):
    make("luna", 0.4, lr=0.002)
    make("luna", 0.5, lr=0.1)
    make("linear", 0.5, lr=0.1)
    found = table(runs, vary=["protocol.recipe.lr"])
    assert {r.label for r in found.rows} == {"luna lr=0.002", "luna lr=0.1", "linear lr=0.1"}


def test_budgets_that_follow_from_a_varied_setting_share_a_table(make: Make, runs: Path):
    """Learned positions are parameters of the reference too."""
    make("luna", 0.4, lr=0.002)
    budget = {"reference": "luna", "tolerance": {"parameters": 0.05}, "flops": 20_000_000}
    make("luna", 0.5, lr=0.1, compute__budget=budget)
    found = table(runs, vary=["protocol.recipe.lr"])
    assert "compute budget luna: 0.019 GFLOPs or luna: 0.020 GFLOPs" in found.notes[-1]
    make("luna", 0.6, seed=2, lr=0.1)  # a budget of its own, and nothing that explains it
    with pytest.raises(UserError, match=r"compute\.budget\.flops is 19000000 .* or 20000000"):
        table(runs, where={"protocol.recipe.lr": 0.1})


def test_seeds_of_different_settings_never_share_a_cell(make: Make, runs: Path):
    make("luna", 0.4, seed=1)
    make("luna", 0.5, seed=2, lr=0.1)
    with pytest.raises(UserError, match="differ in settings that no row shows"):
        cells_by_row(records.load_records([runs]), lambda r: r.attention, lambda *_: None)


def test_rows_of_one_name_are_refused(make: Make, runs: Path):
    """Both rates would be `lr`."""
    make("luna", 0.4)
    (one,) = records.load_records([runs])
    pretrained = [
        dataclasses.replace(one, facts=one.facts | {
            "identity": str(lr),
            "settings": one["settings"] | {"pretrain": {"name": "masked", "recipe": {"lr": lr}}},
        })
        for lr in (0.1, 0.2)
    ]  # fmt: skip
    spec = TableSpec(name="t", title="T", vary=["pretrain.recipe.lr", "protocol.recipe.lr"])
    with pytest.raises(UserError, match=r"table 't' has several rows named 'luna lr=0\.002"):
        build(spec, pretrained)


def test_a_setting_that_only_some_runs_hold_separates_rows(make: Make, runs: Path):
    make("luna", 0.4)
    make("luna", 0.9, options={"psi": "frozen"})
    assert [r.label for r in table(runs).rows] == ["luna psi=frozen", "luna psi=learned"]
    found = table(runs, where={"attention.psi": "learned"})
    assert [cell.mean for _, _, cell in found.cells()] == pytest.approx([40])


def test_a_table_says_what_it_cannot_show_and_hides_speeds(make: Make, runs: Path):
    make("luna", 0.4, steps_per_second=123.4)
    text = markdown(table(runs, caveat="One *seed*.", speed=False), runs)
    assert "**One \\*seed\\*.**" in text
    assert "123.4" not in text
    assert "the runs shared their machine" in text


def test_speeds_of_different_machines_are_not_compared(make: Make, runs: Path):
    make("luna", 0.4, steps_per_second=123.4)
    assert "123.4" in markdown(table(runs), runs)
    make("linear", 0.4, machine__device="another CPU")
    text = markdown(table(runs), runs)
    assert "123.4" not in text
    assert "they come from different machines" in text


def test_runs_of_different_code_are_different_rows(make: Make, runs: Path):
    """Seeds of two codes were averaged when the code was not part of a run."""
    for seed, code in ((1, None), (2, None), (3, "aaaa1111")):
        make("luna", 0.4 + 0.1 * seed, seed=seed, **({"codes": [code]} if code else {}))
    found = table(runs)
    assert [(r.label, len(r.cells["listops"].values)) for r in found.rows] == [
        ("luna code=aaaa1111", 1),
        ("luna code=unknown", 2),
    ]
    assert any("not averaged with later ones" in note for note in found.notes)


def test_the_first_attempt_to_finish_is_shown(make: Make, runs: Path, tmp_path: Path):
    make("luna", 0.4)
    make("luna", 0.9, folder="seed-1-attempt-2", attempt=2,
         times__finished="2026-01-02T00:00:00+0000")  # fmt: skip
    found = table(runs)
    assert row(found, "luna").cells["listops"].values == [40.0]
    assert [r.score for r in found.repeated] == [90.0]
    assert any("repeated (rerun=true)" in note and "90.0" in note for note in found.notes)


def test_every_protocol_is_named_where_a_table_varies_it(make: Make, runs: Path):
    make("luna", 0.4)
    make("luna", 0.5, protocol="official")
    found = table(runs, vary=["protocol.name"])
    assert {r.label for r in found.rows} == {"luna protocol=luna", "luna protocol=official"}
    assert "protocol luna v1 and official v1" in found.notes[0]


def test_columns_of_a_setting_at_the_rate_that_dev_chooses(make: Make, runs: Path):
    """At 64 pairs a rate is best on dev but not on test; one with the best seed of all lacks the
    other, because it diverged."""
    spec = {"columns": "task.pairs", "choose": "protocol.recipe.lr"}
    for pairs, lr, dev, test in [(64, 0.1, 0.8, 0.5), (64, 0.2, 0.7, 0.9), (128, 0.2, 0.3, 0.2),
                                 (8, 0.1, 0.9, 0.95)]:  # fmt: skip
        for seed in (1, 2):
            make("luna", test, lr=lr, seed=seed, pairs=pairs, dev__accuracy=dev)
    make("luna", 0.6, lr=0.4, seed=1, pairs=64, dev__accuracy=0.99)
    make("linear", 0.4, lr=0.4, seed=1, pairs=64)
    found = table(runs, **spec)
    assert found.tasks == ["pairs=8", "pairs=64", "pairs=128"]
    assert found.axis == "pairs"
    means = {name: (cell.mean, len(cell.values)) for name, cell in row(found, "luna").cells.items()}
    assert means == {"pairs=8": (95, 2), "pairs=64": (50, 2), "pairs=128": (20, 2)}
    assert row(found, "luna").summary["average"] == pytest.approx(55)
    assert row(found, "linear").tasks == "1/3"
    assert any("chosen were 0.1, 0.2, 0.4." in note for note in found.notes)
    with pytest.raises(UserError, match="would mix runs"):
        table(runs, choose="protocol.recipe.lr")
