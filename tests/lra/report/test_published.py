"""Published numbers: which stand beside which run, and what is said of their budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pydantic import ValidationError

from lra.report import published as module
from lra.report.published import Published, published, published_score, tokens_of
from lra.report.render import markdown
from lra.report.trainings import FIVE
from lra.results.record import Record

from ..synthetic import Make, table

PRINTED = {"mega chunk=None": 88.21, "Mega, in chunks": 85.66, "S4-LegS": 86.09, "SGConv": 87.17}
ROW: dict[str, Any] = {"values": [50.0, 60.0], "source": "paper"}


def made(also: str = "", **row: Any) -> Published:
    """A table `t` of one row for each of linear and softmax."""
    rows = {"linear": ROW | row, "softmax": ROW}
    tables = {"t": {"title": "T", "tasks": ["listops", "retrieval"], "also": also, "rows": rows}}
    known = {"labels": {"paper": "P"}, "brackets": {"paper": "kept"}}
    contents = {"sources": {"paper": "a paper"}, "tables": tables, **known}
    return Published.model_validate(contents)


@pytest.fixture
def of_linear(monkeypatch: pytest.MonkeyPatch):
    """Facts of linear's published row in place of all that is published."""

    def put(**row: Any) -> None:
        monkeypatch.setattr(module, "published", lambda: made(**row))
        monkeypatch.setattr("lra.report.rows.published", lambda: made(**row))

    return put


def test_published_ablations_go_by_their_options(make: Make, runs: Path):
    make("luna", 0.5, task="image", options={"M": 32})
    make("luna", 0.5, task="listops", options={"M": 32})
    cells = table(runs, published="M").cells.droplevel("row")
    assert cells.loc["image", "published"] == 59.15
    assert pd.isna(cells.loc["listops", "published"])
    rff = {"M": 8, "L": 8, "kernel": "rff"}
    assert published_score("kernel", "luna", "image", rff).score == 35.72
    assert published_score("M", "luna", "image", {"M": 8, "L": 4}).score is None
    assert published_score("M", "linear", "image", {"M": 8, "L": 8}).score is None


def test_the_published_table_is_the_paper_s():
    printed = {"luna": 65.44, "softmax": 58.14, "lotformer": 62.9, "polaformer": 60.72}
    printed |= {"luna2021": 61.95, "luna2021, as others quote it": 61.24, "flowformer": 56.48}
    printed |= {"H-Transformer-1D": 61.41}
    for name, average in printed.items():
        values = [published_score("lra", name, task, {}).score for task in FIVE]
        assert sum(filter(None, values)) / 5 == pytest.approx(average, abs=0.0051)
    assert len(published().tables["lra"].rows) == 18 + 6  # of other papers and settings


def test_rows_of_mixers_are_those_of_their_sources():
    """A wrong digit, or two numbers that changed places, moves an average or a task."""
    states = published().tables["states"]
    for name, average in PRINTED.items():
        values = [value for value in states.rows[name].values if value is not None]
        assert sum(values) / 6 == pytest.approx(average, abs=0.0051)
    listops, image = (states.tasks.index(task) for task in ("listops", "image"))
    legs = states.rows["S4-LegS"]
    assert (legs.values[listops], legs.values[image]) == (59.60, 88.65)
    assert isinstance(legs.tokens, list)
    # 120,000 steps of 32 at 2,048 tokens, and 180,000 of 50 pictures.
    assert legs.tokens[listops] == pytest.approx(120_000 * 32 * 2048 / 1e9, rel=0.01)
    assert legs.tokens[image] == pytest.approx(180_000 * 50 * 1024 / 1e9, rel=0.01)


def test_rows_of_another_table_stand_beside_the_same_runs():
    whole = published_score("lra", "mega", "listops", {"chunk": None})
    assert (whole.score, whole.tokens, whole.layers) == (63.14, 11.8, 6)
    assert published_score("lra", "mega", "text", {"chunk": None}).layers == 4
    assert published_score("lra", "mega", "listops", {"chunk": 320}).score is None
    assert published_score("lra", "s4d", "image", {"init": "lin"}).score is None
    validation = published_score("image_validation", "s4d", "image", {"init": "real"})
    assert (validation.score, validation.parameters) == (70.88, 267_000)
    assert published_score("image_validation", "s4d", "image", {"init": "lin"}).score == 82.78
    assert published_score("skyformer", "mega", "listops", {"chunk": None}).score is None


def test_a_row_says_how_much_larger_its_budget_is(make: Make, runs: Path, of_linear):
    """Ours: 100 steps of 32 at 2,000 tokens are 0.0064 G, of two texts 0.0128; 86,000 weights."""
    of_linear(tokens=[0.1536, 0.0064], parameters=[None, 2_580_000], layers=6, width=[256, None])
    make("linear", 0.5, data__width=2000)
    make("linear", 0.5, task="retrieval", data__width=2000)
    make("softmax", 0.5, data__width=2000)
    shown = markdown(table(runs, published="t"), runs)
    [line] = [line for line in shown.splitlines() if "times our tokens" in line]
    assert line.startswith("| linear |")
    assert "listops: 24 times our tokens, 6 layers of width 256" in line
    assert "retrieval: 0.5 times our tokens, 30 times our weights, 6 layers" in line
    assert "steps × batch × padded length (of both texts of Retrieval)" in shown


def test_a_fact_of_one_task_names_it_among_several(make: Make, runs: Path, of_linear):
    of_linear(parameters=[None, 2_580_000])
    make("linear", 0.5)
    make("linear", 0.5, task="retrieval")
    shown = markdown(table(runs, published="t"), runs)
    assert "| retrieval: 30 times our weights |" in shown


def test_our_tokens_are_those_of_the_padded_length():
    def of(task: str = "text", **data: int) -> float | None:
        facts = {"kind": "training", "task": task, "steps": 1000, "batch": 10}
        protocol = {"data": {"pad_to": 0, "max_length": 0} | data}
        more = {"settings": {"protocol": protocol}, "data": {"width": 300}}
        return tokens_of(Record(facts | more, Path()))

    assert of(pad_to=512, max_length=500) == pytest.approx(0.00512)
    assert of(max_length=500) == pytest.approx(0.005)
    assert of() == pytest.approx(0.003), "the protocol leaves the length to the data"
    assert of("retrieval", max_length=500) == pytest.approx(0.01)
    assert tokens_of(Record({"kind": "conversion", "task": "sst2"}, Path())) is None


def test_what_one_side_does_not_know_is_not_said(make: Make, runs: Path, of_linear):
    of_linear(tokens=0.1536, parameters=[None, 1_000_000])
    make("linear", 0.5)  # its record does not say how long its data are
    shown = markdown(table(runs, published="t"), runs)
    assert "Beside the published numbers" in shown
    assert "their budget" not in shown
    assert "Their budget" not in shown
    of_linear(selected_seed=True)
    assert "| a selected seed |" in markdown(table(runs, published="t"), runs)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"tokens": 7_900_000_000}, "less than or equal to 10000"),
        ({"tokens": 0}, "greater than 0"),
        ({"tokens": [7.9]}, "tokens of the row linear has 1 numbers for 2 tasks"),
        ({"values": [50.0]}, "values of the row linear has 1 numbers for 2 tasks"),
        ({"parameters": 4.15}, "valid integer"),
        ({"parameters": 4}, "greater than or equal to 1000"),
        ({"layers": 6.5}, "valid integer"),
        ({"selected_seed": "yes"}, "valid boolean"),
        ({"token": 7.9}, "Extra inputs are not permitted"),
        ({"source": "elsewhere"}, "a source of which too little is said: elsewhere"),
        ({"also": "u"}, "takes rows of u, which is no table"),
    ],
)
def test_a_wrong_fact_of_a_row_is_refused(row: dict[str, Any], words: str):
    with pytest.raises(ValidationError, match=words):
        made(**row)
