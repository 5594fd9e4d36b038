"""The cases that several benchmarks measure."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import luna
from lra.bench.cases import AttentionCase, StepCase, TrainingStep, methods_of, random_batch
from lra.bench.rows import slope
from lra.bench.worker import BenchMeter, BenchRules
from lra.settings.compose import compose

METER = BenchMeter(BenchRules(rounds=1, threads=1, calls=1, least=0.0, dear=math.inf))
STEP = ("task=listops", "attention=linear", "compute=off", "model.n_layers=1",
        "protocol.data.pad_to=64", "protocol.data.max_length=64",
        "protocol.recipe.batch=2")  # fmt: skip


def case(word: str, **more: Any) -> AttentionCase:
    size = {"batch": 1, "heads": 2, "head_dim": 8} | more
    return AttentionCase(group="attention", **size, **methods_of([word])[0])


def test_memory_is_that_of_the_matrices():
    """Softmax written out holds its scores and weights, and in the backward pass their gradients:
    between two and four n x n tensors of float32 per head."""
    softmax = case("softmax@published")
    peaks = {n: softmax.costs(n, METER)["peak_bytes"] for n in (64, 128, 256)}
    assert 2 <= peaks[256] / (2 * 256 * 256 * 4) < 4.5
    assert slope(peaks) == pytest.approx(2, abs=0.3)


def test_values_may_be_narrower_than_queries():
    wide = case("linear", head_dim=64, value_dim=8)
    assert [x.shape[-1] for x in wide.inputs(4, METER.device)] == [64, 64, 8, 128]
    assert wide.flops(256) == 2 * (4 * 256 * 64 * 8 + 2 * 256 * 64)
    assert wide.costs(4, METER)["train_seconds"] > 0


def test_training_leaves_no_gradients_and_forward_makes_none(monkeypatch: pytest.MonkeyPatch):
    """Each pass in its own mode."""
    modes: list[tuple[bool, bool]] = []
    forward = luna.Attention.forward
    linear = case("linear")

    def spy(self: luna.Attention, *arguments: Any) -> Any:
        modes.append((self.training, torch.is_grad_enabled()))
        assert arguments[0].grad is None
        return forward(self, *arguments)

    monkeypatch.setattr(luna.Attention, "forward", spy)
    assert set(linear.costs(64, METER)) == {"train_seconds", "peak_bytes", "forward_seconds"}
    assert modes == [(True, True)] * 3 + [(False, False)] * 2


def test_a_training_step_changes_the_weights_and_clears_the_gradients():
    run = compose(STEP)
    step = TrainingStep(run, METER.device)
    ids, mask, labels = random_batch(run, METER.device)
    assert ids.shape == (2, 64)
    assert ids.min() > 0
    assert mask is not None
    assert mask.all()
    before = [p.clone() for p in step.network.parameters()]
    step(ids, mask, labels)
    after = list(step.network.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(p.grad is None for p in after)


def test_a_step_is_measured_with_its_activations():
    costs = StepCase(group="step", name="linear", lengths=[64], words=STEP).costs(64, METER)
    assert costs["seconds"] > 0
    assert costs["peak_bytes"] > 2 * 64 * 64 * 4  # at least the residual stream of the batch
