"""Rules where scikit-learn is not installed: nothing is left out in silence."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from lra.cli import main
from lra.data.rules import keep, read_scores

INSTALL = "scikit-learn: pip install 'luna-lra[rules]'"
FITTED = ["bag", "counts", "counts and extremes"]  # of ListOps, by scikit-learn
ASKED = ["listops", "source=tiny"]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)


@pytest.mark.usefixtures("without")
def test_the_rules_that_need_it_are_named_and_the_others_are_scored(
    tmp_path: Path, capsys: Any
) -> None:
    file = tmp_path / "rules.jsonl"
    words = ["data", "baseline", *ASKED, "--data-dir", str(tmp_path), "--to", str(file)]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert f"\nrules incomplete: bag, counts, counts and extremes need {INSTALL}\n" in out
    (line,) = read_scores(file)
    assert line["missing"] == FITTED
    assert {"constant", "first operator", "own digits"} < {*line["rules"]}
    assert not {*line["rules"]} & {*FITTED}


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["baseline", *ASKED, "--rule", "constant", "bag"], "linear rules need"),
        (["baseline", *ASKED, "--rule", "counts"], "boosted trees need"),
        (["hunt", *ASKED], "hunts need"),
    ],
)
def test_who_asks_for_such_a_rule_or_a_hunt_is_told_how_to_install_it(
    words: list[str], what: str, tmp_path: Path, capsys: Any
) -> None:
    assert main(["data", *words, "--data-dir", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert f"{what} {INSTALL}" in said.err
    assert "constant" not in said.out


def test_rules_that_were_not_asked_for_are_missing_until_they_are_fitted(
    tmp_path: Path, capsys: Any
) -> None:
    file = tmp_path / "rules.jsonl"
    words = ["data", "baseline", *ASKED, "--data-dir", str(tmp_path), "--to", str(file)]
    assert main([*words, "--rule", "constant", "bag"]) == 0
    assert "counts and extremes, usual operator" in capsys.readouterr().out
    (line,) = read_scores(file)
    assert not {"constant", "bag"} & {*line["missing"]}
    assert main([*words, "--rule", "counts"]) == 0  # beside them
    (now,) = read_scores(file)
    assert {*line["missing"]} - {*now["missing"]} == {"counts"}
    assert {*now["rules"]} == {"constant", "bag", "counts"}
    capsys.readouterr()
    assert main(words) == 0
    assert "incomplete" not in capsys.readouterr().out
    assert "missing" not in read_scores(file)[0]
    keep(line, file)  # some of them again: the others are still there
    assert "missing" not in read_scores(file)[0]
