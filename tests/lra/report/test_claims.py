"""Pages say what the tables say, or the suite is red."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from lra.base.errors import UserError
from lra.data.rules import keep
from lra.report import claims
from lra.report.claims import checked
from lra.report.conversions import CONTROL, conversions
from lra.report.formulas import evaluate
from lra.report.value import Value
from lra.report.values import _leaps, value_of

from ..synthetic import Make, frame, table

CLAIM: dict[str, Any] = {
    "in": "README.md",
    "says": "LUNA has {luna} % and linear {linear.score:.1f}, "
    "{luna.score - linear.score:+.1f} points.",
    "values": {
        "luna": {"cell": "t", "row": "luna"},
        "linear": {"cell": "t", "row": "linear"},
    },
    "holds": ["luna.least > linear.largest"],
}


@pytest.fixture
def results(make: Make, runs: Path, tmp_path: Path) -> Path:
    for seed, (luna, linear) in enumerate([(0.41, 0.3), (0.43, 0.32)], start=1):
        make("luna", luna, seed=seed)
        make("linear", linear, seed=seed)
    folder = tmp_path / "results"
    folder.mkdir()
    return folder


def claimed(results: Path, runs: Path, page: str, *listed: dict[str, Any], **more: Any) -> Any:
    """The page as it is filled, and the problems."""
    (results.parent / "README.md").write_text(page, encoding="utf-8")
    facts = {"claims": [*listed]} | more
    (results / claims.FILE).write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")
    made = table(runs)
    assert made.spec.name == "t"
    pages, problems = checked(results, [made])
    return pages.get(results.parent / "README.md"), problems


def test_numbers_are_filled_in_however_the_lines_are_broken(results: Path, runs: Path):
    page = "Yes: LUNA has 1.0 ± 9.9 %\nand linear 77, −3.2\npoints. More."
    filled, problems = claimed(results, runs, page, CLAIM)
    assert filled == "Yes: LUNA has 42.0 ± 1.4 %\nand linear 31.0, +11.0\npoints. More."
    assert not problems


def test_a_sentence_that_is_gone_or_false_is_a_problem(results: Path, runs: Path):
    _, (problem,) = claimed(results, runs, "LUNA wins.", CLAIM)
    assert problem.startswith("README.md does not say: 'LUNA has {luna} % and linear")
    false = CLAIM | {"holds": "linear.score > luna.score"}
    page = "LUNA has 42.0 ± 1.4 % and linear 31.0, +11.0 points."
    _, (problem,) = claimed(results, runs, page, false)
    assert problem.startswith("no longer true: 'linear.score > luna.score', of 'LUNA has")


def test_a_number_that_nobody_claims_is_a_problem(results: Path, runs: Path):
    page = (
        "# Title 1.5\n\nLUNA has 42.0 ± 1.4 % and linear 31.0, +11.0 points.\n"
        "`code 2.5` [link](page-3.5.md) of 32 pairs, Python 3.11.5.\n\nBut 12.5 of them, and 7 %."
    )
    _, problems = claimed(
        results, runs, page, CLAIM, pages=["README.md"], apart=[r"Python 3[.\d]+"]
    )
    assert problems == [
        "README.md, line 6: no claim has the number 12.5",
        "README.md, line 6: no claim has the number 7",
    ]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"a": {"cell": "u", "row": "luna"}}, "names the table 'u'"),
        ({"a": {"cell": "t", "row": "lunar"}}, "no row 'lunar'; did you mean luna"),
        ({"a": {"cell": "t"}}, "lacks 'row'"),
        ({"a": {"sell": "t"}}, "not .'sell'"),
        ({"a": {"file": "../secret.csv", "where": {}}}, "there is no such file in"),
        ({"a": {"cell": "t", "row": "luna", "column": "image"}}, "no column 'image'"),
    ],
)
def test_a_source_that_is_not_there_is_one_sentence(
    results: Path, runs: Path, values: dict[str, Any], words: str
):
    with pytest.raises(UserError, match=words):
        claimed(results, runs, "{a}", CLAIM | {"says": "It is {a}.", "values": values, "holds": []})


def test_a_line_of_a_file_and_a_count(results: Path, runs: Path):
    (results / "rates.csv").write_text("case,rate\na,0.25\nb,0.5\n", encoding="utf-8")
    rules = {"bag": {"test": 41.05}}
    line = {"task": "t", "fingerprint": "f", "metric": {}, "rules": rules}
    keep(line, results / "rules.jsonl")
    claim = {
        "in": "README.md",
        "says": "{100 * rate.rate:.0f} % and {bag.test:.1f}.",
        "values": {
            "rate": {"file": "rates.csv", "where": {"case": "b"}},
            "bag": {"file": "rules.jsonl", "where": {"task": "t"}, "field": "rules > bag"},
        },
    }
    assert claimed(results, runs, "1 % and 2.", claim) == ("50 % and 41.0.", [])
    column = {"in": "README.md", "says": "{all.number} rows", "values": {"all": {"cells": "t"}}}
    assert claimed(results, runs, "7 rows", column)[0] == "2 rows"


EXCERPT: dict[str, Any] = {
    "in": "README.md",
    "name": "small",
    "first": "in %",
    "columns": {
        "score": {"cell": "t"},
        "seeds": {"cell": "t", "shows": "{it.list}"},
    },
    "rows": {"LUNA": "luna", "others": ["linear", None], "*linear*": {"row": "linear"}},
}
FILLED = """<!-- table small -->

| in % | score | seeds |
| --- | --: | --: |
| LUNA | 42.0 ± 1.4 | 41.0, 43.0 |
| others | 31.0 ± 1.4 |  |
| *linear* | 31.0 ± 1.4 | 30.0, 32.0 |

<!-- end -->"""


def test_a_table_within_a_page_is_filled_and_its_numbers_are_claimed(results: Path, runs: Path):
    page = "Before.\n<!-- table small -->\n| old | 12.5 |\n<!-- end -->\nAfter, with 7.5."
    filled, problems = claimed(results, runs, page, excerpts=[EXCERPT], pages=["README.md"])
    assert filled == f"Before.\n{FILLED}\nAfter, with 7.5."
    assert problems == ["README.md, line 11: no claim has the number 7.5"]
    again, _ = claimed(results, runs, filled, excerpts=[EXCERPT])
    assert again == filled
    _, (problem,) = claimed(results, runs, "No place.", excerpts=[EXCERPT])
    assert problem == "README.md has no <!-- table small --> with an <!-- end -->"
    short = EXCERPT | {"rows": {"LUNA": ["luna"]}}
    with pytest.raises(UserError, match="'LUNA' of small has 1 places, not one a column"):
        claimed(results, runs, page, excerpts=[short])


def test_a_page_that_is_not_there_is_one_sentence(results: Path, runs: Path):
    with pytest.raises(UserError, match=r"names the page LATER\.md, which is no \.md file"):
        claimed(results, runs, "", pages=["LATER.md"])


# ---------------------------------------------------------------------- kinds of sources


def value(results: Path, runs: Path, **source: Any) -> Value:
    return value_of(source, [table(runs)], results)


def test_two_rows_are_tested_with_and_without_their_pairs_of_seeds(results: Path, runs: Path):
    """Of 41, 43 and 30, 32: t is 11 / √2 with two degrees of freedom; each pair differs by 11."""
    tested = value(results, runs, welch="t", row="luna", than="linear")
    assert tested.field("difference") == pytest.approx(11)
    assert tested.field("p") == pytest.approx(1 - 11 / math.sqrt(11**2 + 4))
    assert tested.field("low") == pytest.approx(11 - 4.30265 * math.sqrt(2), abs=1e-4)
    both = value(results, runs, welch="t", row="linear", than=["luna", "linear"])
    assert (both.field("seeds"), both.field("mean")) == (4, pytest.approx(36.5))
    assert both.field("difference") == pytest.approx(31 - 36.5)
    paired = value(results, runs, paired="t", row="luna", than="linear")
    assert [paired.field(name) for name in ("low", "high")] == pytest.approx([11, 11])


def test_a_test_needs_two_seeds_and_pairs_the_same_ones(make: Make, results: Path, runs: Path):
    make("softmax", 0.5, seed=3)
    for kind in ("welch", "paired"):
        with pytest.raises(UserError, match="needs two seeds of each row"):
            value(results, runs, **{kind: "t"}, row="luna", than="softmax")
    make("softmax", 0.5, seed=1)
    with pytest.raises(UserError, match="have different seeds"):
        value(results, runs, paired="t", row="luna", than="softmax")


def test_lines_of_a_file_have_a_least_and_a_largest_number(results: Path, runs: Path):
    (results / "steps.csv").write_text("case,size\na,9\nb,10\nb,2.5\n", encoding="utf-8")
    sizes = value(results, runs, lines="steps.csv", where={"case": "b"}, field="size")
    assert sizes.fields == {"number": 2, "least": 2.5, "largest": 10}
    with pytest.raises(UserError, match="no line has"):
        value(results, runs, lines="steps.csv", where={"case": "c"}, field="size")


def test_a_column_counts_methods_and_those_that_leapt(results: Path, runs: Path):
    column = value(results, runs, cells="t")
    assert (column.field("methods"), column.field("methods_leapt")) == (2, 0)


def test_published_scores_are_of_a_row_or_of_all_others(results: Path, runs: Path):
    one = value(results, runs, published="listops", row="S4-LegS")
    assert one.fields == {"number": 1, "least": 59.6, "largest": 59.6}
    states = {"published": "listops", "outside": ["states"]}
    assert value(results, runs, **states, without=["H-Transformer-1D"]).field("largest") < 40
    with pytest.raises(UserError, match="nothing is published"):
        value(results, runs, published="listops", row="S4-Legs")


def test_leaps_are_steps_of_a_third_and_two_thirds_of_the_way():
    cells = [
        pd.Series({"steps_to_third": "750 1000", "steps_to_two_thirds": "1000 never"}),
        pd.Series({"steps_to_third": "never", "steps_to_two_thirds": "never"}),
        pd.Series({"score": 1.0}),  # of a table without rules
    ]
    assert _leaps(cells) == {
        "leapt": 2,
        "arrived": 1,
        "unfinished": 1,
        "stayed": 1,
        "first_leap": 750,
        "last_leap": 1000,
        "leaps": "750 to 1,000",
        "slowest": 250,
    }
    assert _leaps(cells[1:])["leaps"] == "none"


def test_conversions_are_compared_example_by_example(convert: Make, runs: Path):
    """All rows against one, and a pair as its table has it; a positive number is below the row."""
    labels = {"dev": [1] * 20}
    convert("softmax", 0.9, predictions=labels, labels=labels)
    convert("hedgehog", 0.5, predictions={"dev": [1] * 10 + [0] * 10}, labels=labels)
    convert("t2r", 0.2, predictions={"dev": [1] * 4 + [0] * 16}, labels=labels)
    (made,) = conversions(frame(runs))

    def looked_up(**source: Any) -> Value:
        return value_of(source, [made], runs)

    against = looked_up(against=made.spec.name, row=CONTROL)
    farthest = [against.field(name) for name in ("number", "nearest", "farthest")]
    assert farthest == [2, pytest.approx(50), pytest.approx(80)]
    assert 0 < against.field("p") < 0.05
    upwards = looked_up(against=made.spec.name, row="t2r")
    assert [upwards.field(name) for name in ("nearest", "farthest")] == pytest.approx([-80, -30])
    first, second = made.pairs.reset_index()[["first", "second"]].iloc[0]
    pair = looked_up(pair=made.spec.name, first=first, second=second)
    assert abs(pair.field("difference")) in (30, 50, 80)
    with pytest.raises(UserError, match="0 lines have"):
        looked_up(pair=made.spec.name, first=second, second=first)


# ---------------------------------------------------------------------- formulas


@pytest.mark.parametrize(
    ("formula", "result"),
    [
        ("a.x + 2 * 3", 11),
        ("-a.x < 0 and not a.x == 4", True),
        ("1 < a.x <= 5 or a.y == 'no'", True),
        ("max(a.x, 9) - min(1, 2) / 2 + abs(-1)", 9.5),
        ("round(a.x / 3)", 2),
    ],
)
def test_a_formula_computes(formula: str, result: Any):
    assert evaluate(formula, {"a": Value("a", {"x": 5, "y": "yes"})}) == result


@pytest.mark.parametrize(
    "formula",
    [
        "__import__('os').system('true')",
        "a.__class__",
        "a.fields",
        "[x for x in (1,)]",
        "a.x.real",
        "open('x')",
        "(lambda: 1)()",
        "a.x ** 99",
        "b.x",
        "a.x +",
    ],
)
def test_a_formula_runs_no_code(formula: str):
    with pytest.raises(UserError, match="cannot be computed"):
        evaluate(formula, {"a": Value("a", {"x": 5})})
