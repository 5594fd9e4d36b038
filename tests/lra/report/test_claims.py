"""Pages say what the tables say, or the suite is red."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lra.base.errors import UserError
from lra.report import claims
from lra.report.claims import checked, evaluate
from lra.report.values import Value

from ..synthetic import Make, table

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
    (results / claims.FILE).write_text(yaml.safe_dump(facts), encoding="utf-8")
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
        ({"a": {"file": "../secret.csv", "where": {}}}, "is no file of"),
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
    (results / "rules.jsonl").write_text('{"x": 1, "rules": {"bag": {"test": 41.05}}}\n', "utf-8")
    claim = {
        "in": "README.md",
        "says": "{100 * rate.rate:.0f} % and {bag.test:.1f}.",
        "values": {
            "rate": {"file": "rates.csv", "where": {"case": "b"}},
            "bag": {"file": "rules.jsonl", "where": {"x": 1}, "field": "rules > bag"},
        },
    }
    assert claimed(results, runs, "1 % and 2.", claim) == ("50 % and 41.0.", [])
    column = {"in": "README.md", "says": "{all.number} rows", "values": {"all": {"cells": "t"}}}
    assert claimed(results, runs, "7 rows", column)[0] == "2 rows"


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
