"""Rows and runs compared example by example, against exact tests."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lra import cli
from lra.base.errors import UserError
from lra.metrics.metric import facts_of, get
from lra.metrics.target import Classes
from lra.report import versus
from lra.report.words import differences, find_runs
from lra.results.record import Record

from ..synthetic import add_answers, frame

N = 400
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def answering(make):
    """answering("luna", right, seed=1): a run that answers right where `right` is True."""

    def write(attention: str, right: torch.Tensor, shift: int = 0, examples=N, **more) -> Path:
        labels = (torch.arange(N) + shift) % 2
        logits = torch.nn.functional.one_hot(torch.where(right, labels, 1 - labels), 2).float()
        answers = Classes(2).store(logits, labels)
        path = make(attention, answers.right.mean(), stages__best__examples=examples, **more)
        add_answers(path, answers)
        return path

    return write


def compared(runs: Path, *words: str) -> dict[str, float]:
    everything = frame(runs)
    return versus.compare(*([*find_runs(word, everything)["record"]] for word in words))


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
    assert not differences(frame(runs))


def test_words_name_runs_and_refusals_are_sentences(answering, make, runs: Path, capsys: Capture):
    right = torch.arange(N) < 300
    luna = answering("luna", right)
    answering("softmax", right, shift=1)
    with pytest.raises(UserError, match="not tested on the same examples"):
        compared(runs, "luna", "softmax")
    answering("luna", right, options={"M": 4})
    everything = frame(runs)
    with pytest.raises(UserError, match=r"'luna' names 2 rows, .*\n  luna,M=[48]\n  luna,M=[48]$"):
        find_runs("luna", everything)
    as_printed = "luna M=4 lr=0.002", "luna,M=4,lr=2e-3"
    for word in ("luna,M=4", "luna,M=4.0,protocol.recipe.lr=2e-3,kernel=learned", *as_printed):
        assert list(find_runs(word, everything)["attention.M"]) == [4]
    with pytest.raises(UserError, match="have no setting 'lrr'; did you mean"):
        find_runs("luna,lrr=1", everything)
    twice = everything.assign(**{"model.lr": 1})
    with pytest.raises(UserError, match=r"'lr'; give one of protocol.recipe.lr, model.lr$"):
        find_runs("luna,lr=2e-3", twice)
    assert cli.main(["compare", "luna", "softmax", "--task", "lisstops", "--runs", str(runs)]) == 2
    assert "--task lisstops: the runs in" in capsys.readouterr().err
    make("linear", 0.3)
    assert cli.main(["compare", "linear", str(luna.parent), "--runs", str(runs)]) == 2
    assert "has no answers" in capsys.readouterr().err
    assert cli.main(["compare", "lunar", "luna", "--runs", str(runs)]) == 2
    assert "'lunar' names no run; the rows here are:\n  linear" in capsys.readouterr().err
    assert cli.main(["compare", "--runs", str(runs)]) == 2
    words = capsys.readouterr().err.split("\n  ")[1:]
    assert len(words) == 4
    for word in words:  # each names the runs of one row
        assert len(find_runs(word.strip(), frame(runs))) == 1


def test_a_folder_without_runs_is_said_to_have_none(tmp_path: Path, capsys: Capture):
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert cli.main(["compare", "luna", "linear", "--runs", str(folder)]) == 2
        said = capsys.readouterr().err
        assert f"{folder} holds no finished run; train one" in said
        assert said.endswith("--runs\n")


def test_few_rows_are_named_briefly_and_an_example_works(answering, runs: Path, capsys: Capture):
    """Ten rows, nine of which differ in three settings: at most eight are listed."""
    right = torch.arange(N) < 300
    for m, l in itertools.product((2, 4, 8), (2, 4, 8)):
        answering("luna", right, options={"M": m, "L": l, "hidden": 10 * m})
    answering("softmax", right)
    assert cli.main(["compare", "--runs", str(runs)]) == 2
    first, *lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 9
    assert lines[-1] == "  and 2 more"
    assert "  luna,L=8,M=8" in lines, "hidden follows from M"
    assert all(len(find_runs(word.strip(), frame(runs))) == 1 for word in lines[:-1])
    command = first.partition("such as: lra ")[2].split()
    assert cli.main(command) == 0
    shown = capsys.readouterr().out
    assert [line[3:8] for line in shown.splitlines()[:2]] == ["softm", "luna,"]
    settings = [line for line in shown.splitlines() if line.startswith("setting")]
    assert settings[0] == "setting   attention.name: A softmax, B luna"
    assert "absent" not in "".join(settings), "softmax has no M"


def test_a_name_without_its_seed_is_the_row(answering, runs: Path):
    for seed in (1, 2):
        answering("luna", torch.arange(N) < 300, seed=seed)
    name = frame(runs)["run"].iloc[0].rpartition("-seed-")[0]
    assert sorted(find_runs(name, frame(runs))["seed"]) == [1, 2]


@pytest.mark.parametrize(
    ("examples", "note"),
    [(8, "the 50 answers of an example count as one"), (150, "count as independent, so p may be")],
)
def test_the_answers_of_one_example_are_flipped_together(
    answering, runs: Path, capsys: Capture, examples: int, note: str
):
    n = torch.arange(N)
    answering("luna", n < 250, examples=examples)
    answering("softmax", n < 200, examples=examples)
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
    answering("softmax", n < 200, steps_share=0.1)
    assert shown()[0].endswith(
        "A 100 steps of 32, steps share 0.02; B 100 steps of 32, steps share 0.1"
    )
    assert any("not shown to differ: a single seed says too little" in line for line in shown())
    answering("luna", n < 290, seed=2)
    answering("softmax", n < 205, seed=2, steps_share=0.1)
    assert "not shown to differ: two seeds say too little" in shown()[7], "75, 73 and 50, 51 %"
    answering("luna", n < 150, seed=3)
    answering("softmax", n < 203, seed=3, steps_share=0.1)
    networks, methods = shown()[6:8]
    assert networks.endswith("these networks differ")
    assert methods.endswith("not shown to differ"), "75, 73, 38 % against 50, 51, 51 %"


# ---------------------------------------------------------------------- rows of conversions


def record(answers: list[float], labels: list[float], task: str = "sst2", seed: int = 1) -> Record:
    metric = facts_of(get("pearson_spearman" if task == "stsb" else "accuracy"))
    facts: dict[str, Any] = {"kind": "conversion", "task": task, "seed": seed, "metric": metric}
    return Record(
        facts | {"predictions": {"dev": answers}, "labels": {"dev": labels}}, Path("x.json")
    )


def test_with_one_seed_it_is_mcnemars_test():
    labels = [1] * 60
    a = [1] * 50 + [0] * 10  # wrong on the last 10
    b = [1] * 45 + [0] * 5 + [1] * 2 + [0] * 8  # wrong on 5 more, right on 2 of a's
    ((*_, gap, p),) = versus.paired_tests({"a": [record(a, labels)], "b": [record(b, labels)]})
    assert gap == pytest.approx(100 * 3 / 60)
    exact = 2 * sum(math.comb(7, i) for i in range(3)) / 2**7
    assert p == pytest.approx(exact, abs=0.02)


def test_random_signs_agree_with_all_of_them():
    d = np.array([0.9, 0.4, -0.1, 0.3, 0.7, 0.2, -0.3, 0.5])
    sums = np.array([np.dot(s, d) for s in itertools.product((-1, 1), repeat=len(d))])
    exact = float(np.mean(np.abs(sums) >= d.sum() - 1e-12))
    assert versus.sign_flips(d) == pytest.approx(exact, abs=0.015)
    assert versus.sign_flips(d) == versus.sign_flips(d), "tables are compared byte for byte"
    assert versus.sign_flips(np.zeros(5)) == 1.0


def test_a_regression_is_compared_by_squared_error():
    labels = [1.0, 2.0, 5.0]
    near, far = ([record(a, labels, "stsb")] for a in ([1.1, 2.1, 5.1], [1.5, 2.5, 4.5]))
    ((*_, gap, _),) = versus.paired_tests({"near": near, "far": far})
    assert gap == pytest.approx(100 * (0.25 - 0.01))


def test_pairs_share_holms_correction_and_need_labels():
    labels = [1] * 12
    rows = {
        "old": [Record({"kind": "conversion", "predictions": {"dev": [1] * 12}}, Path("x"))],
        "good": [record([1] * 12, labels)],
        "bad": [record([0] * 8 + [1] * 4, labels)],
        "worse": [record([0] * 9 + [1] * 3, labels)],
    }
    p_values = {(a, b): p for a, b, _, p in versus.paired_tests(rows)}
    assert set(p_values) == {("good", "bad"), ("good", "worse"), ("bad", "worse")}
    alone = versus.sign_flips(np.array([1.0] * 9 + [0.0] * 3))
    assert p_values["good", "worse"] == pytest.approx(3 * alone)
    assert p_values["bad", "worse"] == 1.0
