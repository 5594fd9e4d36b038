"""What stands beside records in a folder of results: rules, tables and claims of somebody else."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lra.base.digests import digest
from lra.base.errors import UserError
from lra.data import hunt
from lra.data.rules import FILE, read_scores
from lra.report import claims, formulas, specs
from lra.report.rules import read_rules
from lra.report.value import Value
from lra.report.values import value_of

RESULTS = Path(__file__).parents[3] / "results"
LINE: dict[str, Any] = read_scores(RESULTS / FILE)[0]
RULE = next(iter(LINE["rules"].values()))
BOMB = "- &a0 [x, x]\n" + "".join(f"- &a{i} [{f'*a{i - 1}, ' * 10}]\n" for i in range(1, 12))


def rules(**changes: Any) -> dict[str, Any]:
    """A line whose rule is changed; None leaves a fact out."""
    changed = {key: value for key, value in (RULE | changes).items() if value is not None}
    return LINE | {"rules": {"one": changed}}


def with_digest(line: Any) -> str:
    """Anybody can make a digest."""
    return json.dumps(line | {"digest": digest(line)} if isinstance(line, dict) else line)


RULES: list[tuple[Any, str]] = [
    (rules(test="0.5"), "rules.one.test"),
    (rules(test=[1]), "rules.one.test"),
    (rules(test=None), "rules.one.test"),
    (rules(reads=None), "rules.one.reads"),
    (rules(test=-1.0), "no percentages"),
    (rules(test=100.5), "no percentages"),
    (rules(test=float("inf")), "rules.one.test"),
    (rules(test=float("nan")), "rules.one.test"),
    (rules(test=10**400), "invalid"),
    (rules(val=True), "rules.one.val"),
    (rules(bound="yes"), "rules.one.bound"),
    (rules(by={"2": [5, 4]}), "more right answers than examples"),
    (rules(more=1), "rules.one.more"),
    (rules(reads="\x1b]0;a\x07"), "could steer a terminal"),
    (LINE | {"rules": {"\u202e": RULE}}, "could steer a terminal"),
    (LINE | {"rules": {"": RULE}}, "rules"),
    (LINE | {"rules": [1]}, "rules"),
    (LINE | {"task": "../x"}, "task"),
    (LINE | {"fingerprint": 5}, "fingerprint"),
    ({k: v for k, v in LINE.items() if k != "fingerprint"}, "fingerprint"),
    (LINE | {"more": 1}, "more"),
    ([1], "invalid"),
    (None, "invalid"),
]


@pytest.mark.parametrize(("line", "why"), RULES, ids=[why for _, why in RULES])
def test_a_rule_that_no_rule_scores_is_refused(tmp_path: Path, line: Any, why: str):
    (tmp_path / FILE).write_text(f"{with_digest(line)}\n", encoding="utf-8")
    with pytest.raises(UserError, match=why) as error:
        read_rules(tmp_path)
    assert str(tmp_path / FILE) in str(error.value)


def test_a_data_set_has_one_line_of_rules(tmp_path: Path):
    (tmp_path / FILE).write_text(f"{with_digest(LINE)}\n" * 2, encoding="utf-8")
    with pytest.raises(UserError, match="two lines are of the data"):
        read_rules(tmp_path)


def test_ours_are_read_as_they_are(tmp_path: Path):
    assert read_rules(RESULTS) == read_scores(RESULTS / FILE)
    assert read_rules(tmp_path) == []


def edited(text: str) -> str:
    return text.replace('"test": 4', '"test": 5', 1)


@pytest.mark.parametrize("how", ["edited", "without a digest"])
@pytest.mark.parametrize("name", [FILE, hunt.FILE])
def test_an_edited_line_is_named_by_what_reads_it(tmp_path: Path, name: str, how: str):
    """Rules by every table, both by a claim that quotes them."""
    lines = (RESULTS / name).read_text(encoding="utf-8").splitlines()
    n = next(i for i, line in enumerate(lines) if line != edited(line))
    facts = json.loads(edited(lines[n]) if how == "edited" else lines[n])
    lines[n] = json.dumps({k: v for k, v in facts.items() if k != "digest" or how == "edited"})
    (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    sentence = f"{tmp_path / name}, line {n + 1}, is damaged or invalid (its digest does not fit"
    with pytest.raises(UserError, match=re.escape(sentence)):
        value_of({"file": name, "where": {"task": facts["task"]}}, [], tmp_path)
    with pytest.raises(UserError, match=re.escape(sentence)):
        (read_rules if name == FILE else lambda folder: hunt.read_hunts(folder / name))(tmp_path)


READERS: dict[str, Callable[[Path], Any]] = {
    "tables.yaml": specs.specs,
    "claims.yaml": claims.read_claims,
    FILE: read_rules,
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str):
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match="is not a file"):
        READERS[name](tmp_path)


@pytest.mark.parametrize("name", ["tables.yaml", "claims.yaml"])
@pytest.mark.parametrize("content", [BOMB, "- &a [*a]\n"])
def test_aliases_of_aliases_are_refused_at_once(tmp_path: Path, name: str, content: str):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match="stands for no text or number"):
        READERS[name](tmp_path)


# ---------------------------------------------------------------------- claims

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
