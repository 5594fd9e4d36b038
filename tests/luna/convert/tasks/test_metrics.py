"""The metrics of GLUE."""

from __future__ import annotations

import pytest
import torch

from luna.convert.tasks import metrics
from luna.convert.tasks.glue import TASKS

# The expected values are those of scikit-learn 1.9.1 and scipy 1.17.1.
P = torch.tensor([1, 0, 1, 1, 0, 1, 0, 1, 1, 0])
Y = torch.tensor([1, 0, 0, 1, 1, 1, 0, 1, 0, 1])
A = torch.tensor([0.3, 2.0, 2.0, 5.0, 1.1, 4.4, 2.0, 0.3])
B = torch.tensor([1.0, 2.5, 2.0, 4.0, 1.0, 5.0, 3.0, 0.5])


def test_metrics_are_those_of_scikit_learn_and_scipy():
    assert metrics.paraphrase(P, Y)["accuracy"] == pytest.approx(0.6, abs=1e-12)
    assert metrics.paraphrase(P, Y)["f1"] == pytest.approx(2 / 3, abs=1e-12)
    both = metrics.similarity(A, B)
    assert both["pearson"] == pytest.approx(0.9346400369462446, abs=1e-7)
    assert both["spearman"] == pytest.approx(0.932383028557168, abs=1e-12)  # with ties


def test_metrics_of_constant_answers():
    for answer in (torch.zeros(10, dtype=torch.long), torch.ones(10, dtype=torch.long)):
        assert metrics.acceptable(answer, Y)["mcc"] == 0
    assert metrics.paraphrase(torch.zeros_like(Y), torch.zeros_like(Y))["f1"] == 0
    assert metrics.similarity(torch.full((8,), 2.0), B)["score"] == 0


def test_scores_of_each_task():
    score = {name: set(TASKS[name].metric(P, Y)) - {"score"} for name in TASKS}
    assert score["cola"] == {"mcc", "accuracy"}
    assert score["mrpc"] == score["qqp"] == {"accuracy", "f1"}
    assert score["stsb"] == {"pearson", "spearman"}
    assert all(score[name] == {"accuracy"} for name in ("sst2", "mnli", "qnli", "rte"))
    assert TASKS["mrpc"].metric(P, Y)["score"] == pytest.approx((0.6 + 2 / 3) / 2)
    assert TASKS["cola"].metric(P, Y)["score"] == pytest.approx(1 / 6)
    assert TASKS["mnli"].evaluate == ("dev_matched", "dev_mismatched")


def test_floors_of_the_published_dev_sets():
    """MRPC: always "paraphrase" is right in 279 of 408 pairs, and its F1 is 81.2."""
    labels = torch.cat([torch.ones(279), torch.zeros(129)]).long()
    floor = metrics.constant(labels, metrics.paraphrase)
    assert floor["accuracy"] == pytest.approx(0.684, abs=5e-4)
    assert floor["f1"] == pytest.approx(0.812, abs=5e-4)
    sst2 = metrics.constant(torch.tensor([0] * 428 + [1] * 444), metrics.classified)
    assert sst2["score"] == pytest.approx(0.509, abs=5e-4)
    assert metrics.constant(Y, metrics.acceptable)["score"] == 0
    assert metrics.constant(torch.rand(9), metrics.similarity)["score"] == 0
    assert metrics.constant(Y, metrics.classified)["score"] == pytest.approx(0.6)
