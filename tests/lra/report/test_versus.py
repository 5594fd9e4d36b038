"""Two rows or runs, compared example by example."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lra import cli
from lra.base.config import UserError
from lra.data import prepare
from lra.data.arrays import Layout, Split
from lra.report import versus
from lra.results.record import load_records
from lra.runs.answers import Answers

N = 400


@pytest.fixture
def answering(make):
    """answering("luna", right, seed=1): a run that answers right where `right` is True."""

    def write(attention: str, right: torch.Tensor, shift: int = 0, examples=N, **more) -> Path:
        labels = (torch.arange(N) + shift) % 2
        logits = torch.nn.functional.one_hot(torch.where(right, labels, 1 - labels), 2).float()
        given = Answers.of([logits], [labels])
        accuracy = given.accuracy
        path = make(attention, accuracy, test__examples=examples, answers=given.facts(), **more)
        given.write(path.with_name("answers.npz"))
        return path

    return write


def test_shares_test_and_groups(answering, runs: Path):
    n = torch.arange(N)
    answering("luna", n < 300)
    answering("softmax", n >= 200)
    a, b = (versus.find_runs(name, load_records([runs])) for name in ("luna", "softmax"))
    shown = versus.compare(a, b)
    assert (shown.a, shown.b, shown.both) == (75, 50, 25)
    assert shown.agreement == 25  # two classes: where one is right and the other wrong they differ
    assert shown.p < 0.001
    assert shown.groups.T.to_dict("list") == {"class 0": [200, 75, 50], "class 1": [200, 75, 50]}
    assert shown.settings["attention.name"] == ("luna", "softmax")


def test_the_same_answers_are_no_difference(answering, runs: Path):
    right = torch.arange(N) % 3 > 0
    for seed in (1, 2):
        answering("luna", right, seed=seed)
    a = versus.find_runs("luna", load_records([runs]))
    shown = versus.compare(a[:1], a[1:])
    assert (shown.p, shown.agreement, shown.settings) == (1.0, 100.0, {})


def test_refusals_are_sentences(answering, make, runs: Path, capsys: pytest.CaptureFixture[str]):
    right = torch.arange(N) < 300
    luna, other = answering("luna", right), answering("softmax", right, shift=1)
    with pytest.raises(UserError, match="not tested on the same examples"):
        versus.compare(load_records([luna.parent]), load_records([other.parent]))
    answering("luna", right, options={"M": 4})
    with pytest.raises(UserError, match=r"2 rows, which differ in attention\.M"):
        versus.find_runs("luna", load_records([runs]))
    assert len(versus.find_runs("luna,M=4", load_records([runs]))) == 1
    assert len(versus.find_runs("luna,M=4.0,protocol.recipe.lr=2e-3", load_records([runs]))) == 1
    (run,) = versus.find_runs("luna,M=4", load_records([runs]))
    assert versus.find_runs(run.run, load_records([runs]))[0].key == run.key
    make("linear", 0.3)
    words = ["compare", "linear", str(luna.parent), "--runs", str(runs)]
    assert cli.main(words) == 2
    assert "has no answers" in capsys.readouterr().err
    assert cli.main(["compare", "lunar", "luna", "--runs", str(runs)]) == 2
    assert "'lunar' names no run" in capsys.readouterr().err


def test_the_answers_of_one_example_are_flipped_together(answering, runs: Path, capsys):
    n = torch.arange(N)
    answering("luna", n < 250, examples=8, test__scored=N)  # 50 answers an example
    answering("softmax", n < 200, examples=8, test__scored=N)
    a, b = (versus.find_runs(name, load_records([runs])) for name in ("luna", "softmax"))
    assert versus.compare(a, b).p == 1.0, "one example of eight differs"
    assert cli.main(["compare", "luna", "softmax", "--runs", str(runs)]) == 0
    out = capsys.readouterr().out
    assert "listops, 400 test answers\n" in out
    assert "the 50 answers of an example count as one" in out
    assert "    200 answers   A" in out


def test_no_lengths_where_a_task_scores_tokens(answering, runs: Path, monkeypatch, capsys):
    n = torch.arange(N)
    answering("luna", n < 250, examples=150, test__scored=N)
    answering("softmax", n < 200, examples=150, test__scored=N)
    texts = Split.held(Layout(), 150, [np.ones(length) for length in range(150)])
    monkeypatch.setattr(
        prepare, "with_fingerprint", lambda *_: SimpleNamespace(split=lambda _: texts)
    )
    assert cli.main(["compare", "luna", "softmax", "--runs", str(runs)]) == 0
    out = capsys.readouterr().out
    assert "count as independent, so p may be too small" in out
    assert "class 1" in out
    assert "(" not in out.split("class 1")[1], "no groups of lengths"


def test_groups_by_length(answering, runs: Path, monkeypatch):
    n = torch.arange(N)
    answering("luna", n < 300)
    answering("softmax", n < 100)
    texts = Split.held(Layout(), N, [np.ones(3 + i) for i in range(N)])
    monkeypatch.setattr(
        prepare, "with_fingerprint", lambda *_: SimpleNamespace(split=lambda _: texts)
    )
    a, b = (versus.find_runs(name, load_records([runs])) for name in ("luna", "softmax"))
    groups = versus.compare(a, b, runs).groups.iloc[2:]
    assert list(groups.index) == sorted(groups.index, key=lambda s: float(s[1:].split(",")[0]))
    assert groups.to_numpy().tolist() == [
        [100, 100, 100],
        [100, 100, 0],
        [100, 100, 0],
        [100, 0, 0],
    ]
