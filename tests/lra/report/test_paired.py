"""Paired tests of conversions, against exact ones."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lra.report import versus
from lra.results.record import Record


def record(answers: list[float], labels: list[float], task: str = "sst2", seed: int = 1) -> Record:
    facts: dict[str, Any] = {"task": task, "seed": seed, "scores": {}}
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
    near = [record([1.1, 2.1, 5.1], labels, "stsb")]
    far = [record([1.5, 2.5, 4.5], labels, "stsb")]
    ((*_, gap, _),) = versus.paired_tests({"near": near, "far": far})
    assert gap == pytest.approx(100 * (0.25 - 0.01))


def test_pairs_share_holms_correction_and_need_labels():
    labels = [1] * 12
    rows = {
        "old": [Record({"scores": {}, "predictions": {"dev": [1] * 12}}, Path("x"))],
        "good": [record([1] * 12, labels)],
        "bad": [record([0] * 8 + [1] * 4, labels)],
        "worse": [record([0] * 9 + [1] * 3, labels)],
    }
    p_values = {(a, b): p for a, b, _, p in versus.paired_tests(rows)}
    assert set(p_values) == {("good", "bad"), ("good", "worse"), ("bad", "worse")}
    alone = versus.sign_flips(np.array([1.0] * 9 + [0.0] * 3))
    assert p_values["good", "worse"] == pytest.approx(3 * alone)
    assert p_values["bad", "worse"] == 1.0
