"""Two rows or runs, compared example by example."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lra import cli
from lra.base.config import UserError
from lra.report import versus
from lra.runs.answers import Answers

from ..synthetic import frame

N = 400
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def answering(make):
    """answering("luna", right, seed=1): a run that answers right where `right` is True."""

    def write(attention: str, right: torch.Tensor, shift: int = 0, examples=N, **more) -> Path:
        labels = (torch.arange(N) + shift) % 2
        logits = torch.nn.functional.one_hot(torch.where(right, labels, 1 - labels), 2).float()
        answers = Answers.of([logits], [labels])
        path = make(attention, answers.accuracy, test__examples=examples, answers=answers.facts(),
                    **more)  # fmt: skip
        answers.write(path.with_name("answers.npz"))
        return path

    return write


def compared(runs: Path, *words: str) -> dict[str, float]:
    everything = frame(runs)
    return versus.compare(*([*versus.find_runs(word, everything)["record"]] for word in words))


def test_shares_and_test(answering, runs: Path):
    n = torch.arange(N)
    answering("luna", n < 300)
    answering("softmax", n >= 200)
    shown = compared(runs, "luna", "softmax")
    assert (shown["a"], shown["b"], shown["both"]) == (75, 50, 25)
    assert shown["same"] == 25  # two classes: where one is right and the other wrong they differ
    assert shown["p"] < 0.001


def test_the_same_answers_are_no_difference(answering, runs: Path):
    right = torch.arange(N) % 3 > 0
    for seed in (1, 2):
        answering("luna", right, seed=seed)
    shown = compared(runs, *frame(runs)["run"])
    assert (shown["p"], shown["same"]) == (1.0, 100.0)
    assert not versus.differences(frame(runs))


def test_words_name_runs_and_refusals_are_sentences(answering, make, runs: Path, capsys: Capture):
    right = torch.arange(N) < 300
    luna = answering("luna", right)
    answering("softmax", right, shift=1)
    with pytest.raises(UserError, match="not tested on the same examples"):
        compared(runs, "luna", "softmax")
    answering("luna", right, options={"M": 4})
    everything = frame(runs)
    with pytest.raises(UserError, match=r"2 rows, which differ in attention\.M"):
        versus.find_runs("luna", everything)
    for word in ("luna,M=4", "luna,M=4.0,protocol.recipe.lr=2e-3,kernel=learned"):
        assert list(versus.find_runs(word, everything)["attention.M"]) == [4]
    make("linear", 0.3)
    assert cli.main(["compare", "linear", str(luna.parent), "--runs", str(runs)]) == 2
    assert "has no answers" in capsys.readouterr().err
    assert cli.main(["compare", "lunar", "luna", "--runs", str(runs)]) == 2
    assert "'lunar' names no run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("examples", "note"),
    [(8, "the 50 answers of an example count as one"), (150, "count as independent, so p may be")],
)
def test_the_answers_of_one_example_are_flipped_together(
    answering, runs: Path, capsys: Capture, examples: int, note: str
):
    n = torch.arange(N)
    answering("luna", n < 250, examples=examples, test__scored=N)
    answering("softmax", n < 200, examples=examples, test__scored=N)
    assert (compared(runs, "luna", "softmax")["p"] == 1) == (examples == 8), "one example differs"
    assert cli.main(["compare", "luna", "softmax", "--runs", str(runs)]) == 0
    out = capsys.readouterr().out
    assert "listops, 400 test answers\n" in out
    assert note in out
    assert "attention.name: A luna, B softmax" in out


def test_networks_and_methods_are_tested_apart(answering, runs: Path, capsys: Capture):
    def shown() -> list[str]:
        assert cli.main(["compare", "luna", "softmax", "--runs", str(runs)]) == 0
        return capsys.readouterr().out.splitlines()

    n = torch.arange(N)
    answering("luna", n < 300)
    answering("softmax", n < 200, budget=0.1)
    assert shown()[0].endswith("A 100 steps of 32, budget 0.02; B 100 steps of 32, budget 0.1")
    assert any(line.startswith("methods   a single seed says nothing") for line in shown())
    answering("luna", n < 150, seed=2)
    answering("softmax", n < 205, seed=2, budget=0.1)
    networks, methods = shown()[6:8]
    assert networks.endswith("these networks differ")
    assert methods.endswith("not shown to differ"), "75 and 38 % against 50 and 51 %"
