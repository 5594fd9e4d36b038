"""Tables of training runs: which runs may share one, names of rows, what cells say."""

from __future__ import annotations

from pathlib import Path

import pytest

from lra.base.errors import UserError
from lra.report.render import markdown
from lra.report.specs import specs
from lra.report.table import cells_of
from lra.report.trainings import FIVE

from ..synthetic import Make, cell, frame, table

LR = "protocol.recipe.lr"


def test_an_average_needs_all_five_tasks(make: Make, runs: Path):
    for i, task in enumerate(FIVE):
        make("luna", 0.1 * (i + 1), task=task)
        if task != "image":
            make("softmax", 0.9, task=task)
    make("luna", 0.9, task="pathx")  # not one of the five
    rows = table(runs).rows
    assert rows["average"].dropna().to_dict() == pytest.approx({"luna": 30})
    assert rows["coverage"].to_dict() == {"luna": "5/5", "softmax": "4/5"}
    assert rows.index[0] == "luna", "a row without an average is ranked behind"


def test_long_names_leave_out_usual_options(make: Make, runs: Path):
    make("luna", 0.5)
    for more in ({"nonneg": "exp"}, {"M": 64, "L": 1, "hidden": 16, "nonneg": True}):
        make("luna", 0.4, options=more)
    shown = table(runs)
    assert {*shown.rows.index} == {"luna", "luna nonneg=exp", "luna M=64 L=1 hidden=16"}
    assert shown.rows.loc["luna", "options"] == {"L": 8, "M": 8, "hidden": 64, "nonneg": True}
    assert "Names leave out options that have their usual value." in shown.notes


def test_runs_of_different_code_are_different_rows(make: Make, runs: Path):
    for seed, code in ((1, None), (2, None), (3, "aaaa1111")):
        make("luna", 0.4 + 0.1 * seed, seed=seed, **({"codes": [code]} if code else {}))
    shown = table(runs)
    seeds = shown.cells["seeds"].droplevel("column").to_dict()
    assert seeds == {"luna code=aaaa1111": 1, "luna code=unknown": 2}


def test_the_first_attempt_to_finish_is_shown(make: Make, runs: Path):
    make("luna", 0.4)
    make(
        "luna",
        0.9,
        folder="seed-1-attempt-2",
        attempt=2,
        times__finished="2026-01-02T00:00:00+0000",
    )
    shown = table(runs)
    assert cell(shown, "luna")["values"] == [40.0]
    assert len(shown.taken) == 2
    assert any("1 repeated runs (rerun=true)" in note for note in shown.notes)


# ---------------------------------------------------------------------- mixtures


@pytest.mark.parametrize(
    ("first", "second", "differ"),
    [
        ({}, {"steps_share": 0.1}, r"steps_share is 0\.02 \(luna\) or 0\.1 \(linear\)"),
        ({}, {"source": "tiny"}, r"on listops, data\.source is generated \(luna\) or tiny"),
        ({}, {"lr": 0.1}, r"on listops, protocol\.recipe\.lr is 0\.002 \(luna\) or 0\.1"),
        ({}, {"source": "tiny", "lr": 0.1}, r"(?s)data\.source.*data\.fingerprint.*recipe\.lr"),
        ({}, {"model": "base"}, r"model is base \(linear\) or small \(luna\)"),
        ({}, {"version": 2}, r"protocol\.version is 1"),
        ({}, {"stages__best__examples": 100}, r"stage\.examples is 100 \(linear\) or 2000"),
        ({}, {"compute__budget": {"reference": "softmax", "tolerance": {}}}, r"budget\.reference"),
        ({"task": "text"}, {"steps_share": 0.1}, "steps_share is"),  # across tasks too
    ],
)
def test_mixtures_are_refused_with_what_differs(
    make: Make, runs: Path, first: dict, second: dict, differ: str
):
    make("luna", 0.4, **first)
    make("linear", 0.4, **second)
    with pytest.raises(UserError, match=differ):
        table(runs)


def test_seeds_of_different_settings_share_no_cell(make: Make, runs: Path):
    make("luna", 0.4, seed=1)
    make("luna", 0.5, seed=2, lr=0.1)
    everything = frame(runs).assign(row="luna", column="listops", method="luna", options=None)
    with pytest.raises(UserError, match="differ in settings that no row shows"):
        cells_of(everything)


def test_a_setting_may_vary_where_the_table_says_so(make: Make, runs: Path):
    """Learned positions are parameters of the reference too, so its budget may follow."""
    make("luna", 0.4, lr=0.002)
    budget = {"reference": "luna", "tolerance": {"parameters": 0.05}, "flops": 20_000_000}
    make("luna", 0.5, lr=0.1, compute__budget=budget)
    make("linear", 0.5, lr=0.1, compute__budget=budget)
    shown = table(runs, vary=[LR])
    assert {*shown.rows.index} == {"luna lr=0.002", "luna lr=0.1", "linear lr=0.1"}
    assert "luna: 0.019 GFLOPs" in shown.notes[-1]
    assert "luna: 0.020 GFLOPs" in shown.notes[-1]
    make("luna", 0.6, seed=2, lr=0.1)  # a budget of its own, and nothing that explains it
    with pytest.raises(UserError, match=r"compute\.budget\.flops is 19000000 .* or 20000000"):
        table(runs, where={LR: 0.1})


def on_dev(share: float) -> dict[str, float]:
    return {"dev__score": 100 * share, "dev__right": round(2000 * share)}


def test_columns_at_the_rate_that_dev_chooses(make: Make, runs: Path):
    """At 64 pairs a rate is best on dev but not on test; one with the best seed of all lacks the
    other, because it diverged."""
    for pairs, lr, dev, test in [
        (64, 0.1, 0.8, 0.5),
        (64, 0.2, 0.7, 0.9),
        (128, 0.2, 0.3, 0.2),
        (8, 0.1, 0.9, 0.95),
    ]:
        for seed in (1, 2):
            make("luna", test, lr=lr, seed=seed, pairs=pairs, **on_dev(dev))
    make("luna", 0.6, lr=0.4, seed=1, pairs=64, **on_dev(0.99))
    make("linear", 0.4, lr=0.4, seed=1, pairs=64)
    shown = table(runs, columns="task.pairs", choose=LR)
    assert (shown.columns, shown.axis) == (["pairs=8", "pairs=64", "pairs=128"], "pairs")
    luna = shown.cells.loc["luna"]
    assert luna["score"].to_dict() == {"pairs=8": 95, "pairs=64": 50, "pairs=128": 20}
    assert {*luna["seeds"]} == {2}
    assert shown.summaries == (), "an average over numbers of pairs is no number of anything"
    assert shown.rows.index[0] == "luna"
    assert shown.rows.loc["linear", "coverage"] == "1/3"
    assert any("chosen were 0.1, 0.2, 0.4." in note for note in shown.notes)
    with pytest.raises(UserError, match="would mix runs"):
        table(runs, choose=LR)


# ---------------------------------------------------------------------- the best, what is hidden


@pytest.mark.parametrize(("accuracy", "best"), [(0.1, False), (0.11, True)])
def test_none_is_best_where_all_give_one_answer(
    make: Make, runs: Path, accuracy: float, best: bool
):
    """The larger class is a tenth of the fixture's test set."""
    for seed in (1, 2):
        make("luna", accuracy, seed=seed)
    make("linear", 0.1)
    shown = table(runs)
    assert cell(shown, "luna")["best"] == best
    assert any("no row is above that" in note for note in shown.notes) != best


def test_the_lead_of_a_single_seed_is_not_marked(make: Make, runs: Path):
    make("luna", 0.5)
    for seed in (1, 2):
        make("linear", 0.4, seed=seed)
    assert not table(runs).cells["best"].any()


def test_only_what_is_shown_to_be_worse_is_marked(make: Make, runs: Path):
    for seed in (1, 2, 3):
        make("luna", 0.400 + seed / 200, seed=seed)
        make("linear", 0.398 + seed / 200, seed=seed)
        make("softmax", 0.300 + seed / 200, seed=seed)
    shown = table(runs)
    marks = shown.cells.droplevel("column")[["best", "worse"]].apply(tuple, axis=1).to_dict()
    assert marks == {"luna": (True, False), "linear": (False, False), "softmax": (False, True)}
    assert "| softmax | 31.0 ± 0.5 (3) ↓ |" in markdown(shown, runs)
    assert any("Not shown to differ" in note and "linear (" in note for note in shown.notes)


def test_a_table_says_what_it_cannot_show(make: Make, runs: Path):
    make("luna", 0.4, steps_per_second=123.4, seconds__training=0.81)
    assert "123.4" in markdown(table(runs), runs)
    text = markdown(table(runs, caveat="One *seed*.", speed=False), runs)
    assert "**One \\*seed\\*.**" in text
    assert "123.4" not in text
    make("linear", 0.4, machine__device="another CPU")
    text = markdown(table(runs), runs)
    assert "123.4" not in text
    assert "no speed or memory, because" in text


# ---------------------------------------------------------------------- tables.yaml


def test_where_on_an_option_of_one_attention_asks_no_other(make: Make, runs: Path):
    make("luna", 0.4)
    make("luna", 0.5, options={"M": 4})
    make("linear", 0.5, options={"M": 99})
    shown = table(runs, where={"luna.M": 8})
    assert list(shown.rows.index) == ["linear", "luna"]
    shown = table(runs, where={"attention.M": [4, 99]})
    assert list(shown.rows.index) == ["linear", "luna M=4"]  # 4 is not what it ships with


@pytest.mark.parametrize("field", [{"choose": "rate"}, {"columns": "rate"}, {"where": {"rate": 1}}])
def test_a_setting_that_no_run_has_is_named(make: Make, runs: Path, field: dict):
    make("luna", 0.4)
    with pytest.raises(UserError, match=r"no record has the (setting|fact) 'rate'"):
        table(runs, **field)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("vary: protocol.recipe.lr", r"0\.vary Input should be a valid list"),
        ("effects: often", r"0\.effects Input should be a valid boolean"),
        ("name: ../../README", r"0\.name String should match pattern"),
        ("titel: T", r"0\.titel Extra inputs are not permitted"),
        ("together: [attention.M]", "has `together`, which needs `effects`"),
        ('caveat: "\\x1b[2J"', r"'.x1b\[2J' holds characters that could steer a terminal"),
        ("against: b", "is set against 'b', which is no table"),
        ("caveat: C}\n- {name: t, title: T", "two tables are named t"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, field: str, message: str):
    (tmp_path / "tables.yaml").write_text(f"- {{name: t, title: T, {field}}}", encoding="utf-8")
    with pytest.raises(UserError, match=message):
        specs(tmp_path)
