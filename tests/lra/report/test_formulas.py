"""Formulas, pages and files that claims name: no code, no memory, nothing outside the project."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from lra.base.errors import UserError
from lra.report import claims, formulas
from lra.report.value import Value
from lra.report.values import value_of

FORMULAS = [
    "__import__('os').system('true')",
    "().__class__",
    "a.__class__",
    "a.field.__globals__",
    "[x for x in (1,)]",
    "(lambda: 1)()",
    "open('/etc/passwd')",
    "9**9**9",
    "'a' * 10**9",
    "'a' * 1000000000",
    "max('a' * 1000000, 'b')",
    "1 << 10**9",
    "f'{a}'",
    "a[0]",
    "-" * 5000 + "1",
    "(" * 5000 + "1" + ")" * 5000,
    "1+" * 50_000 + "1",
    "1" * 5000,
    "round(a.score, 1, 2)",
    "abs('x')",
    "min()",
    "1 in a",
    "a.score < 'x'",
    "1 / 0",
    "a\0",
    "",
]


@pytest.mark.parametrize("formula", FORMULAS, ids=range(len(FORMULAS)))
def test_a_formula_runs_no_code(formula: str):
    with pytest.raises(UserError, match="a claim cannot be computed"):
        formulas.evaluate(formula, {"a": Value("a cell", {"score": 1.0})})


@pytest.mark.parametrize("form", ["9999999999d", "999999999.1f", "x", ">1000000000"])
def test_a_form_of_a_number_takes_no_memory(form: str):
    with pytest.raises(UserError, match="a claim"):
        formulas.numbers_of(f"is {{a.score:{form}}}", {"a": Value("a cell", {"score": 1.0})})


@pytest.mark.parametrize(
    "page", ["../other/page.md", "/etc/hosts", "link.md", "code.py", "none.md"]
)
def test_a_claim_is_made_on_pages_of_the_project(tmp_path: Path, page: str):
    root, outside = tmp_path / "project", tmp_path / "other"
    for folder in (root / "results", outside):
        folder.mkdir(parents=True)
    for file in (outside / "page.md", root / "code.py"):
        file.write_text("is 1.0 %\n", encoding="utf-8")
    (root / "link.md").symlink_to(outside / "page.md")
    (root / "results/claims.yaml").write_text(f"pages: ['{page}']\n", encoding="utf-8")
    with pytest.raises(UserError, match="a claim names the page"):
        claims.checked(root / "results", [])


@pytest.mark.parametrize("file", ["../x.csv", "/etc/passwd", "link.csv", "pipe.csv"])
def test_a_number_of_a_claim_stands_in_the_results(tmp_path: Path, file: str):
    results = tmp_path / "results"
    results.mkdir()
    (tmp_path / "x.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    (results / "link.csv").symlink_to(tmp_path / "x.csv")
    os.mkfifo(results / "pipe.csv")
    source = {"file": file, "where": {"a": 1}, "field": "b"}
    with pytest.raises(UserError, match="there is no such file in"):
        value_of(source, [], results)
    shutil.copy(tmp_path / "x.csv", results)
    for broken in ({"where": {"c": 1}}, {"where": 3}, {"field": "z"}, {"field": "b > c"}):
        with pytest.raises(UserError, match=r"claim|x\.csv has no"):
            value_of({"file": "x.csv", "where": {"a": 1}} | broken, [], results)
