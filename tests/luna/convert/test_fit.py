"""Attention maps of teacher and student, and the measurement of their divergence."""

from __future__ import annotations

import copy

import pytest
import torch

from luna.convert import attention_maps, convert, distill
from luna.convert.fit import measure

from .kit import HOSTS, H, bert, comes_again, inputs_of, text


@pytest.mark.parametrize("make", HOSTS.values(), ids=HOSTS)
def test_attention_maps_are_the_hosts_own_and_the_students(make):
    model = make()
    batch = inputs_of(model)
    student = convert(model, "hedgehog")
    maps = attention_maps(student, batch)
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        expected = eager(**batch, output_attentions=True).attentions
        requested = student(**batch, output_attentions=True).attentions
    real = batch["attention_mask"].bool() if "attention_mask" in batch else slice(None)
    for ours, theirs in zip(maps.teacher, expected, strict=True):
        ours, theirs = (t.transpose(1, 2)[real] for t in (ours, theirs))
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    for ours, theirs in zip(maps.student, requested, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["luna", "t2r", "hedgehog"])
def test_rows_of_the_students_maps_sum_to_1_before_training(name):
    """Features are small then: a constant added to the denominator would show."""
    for A in attention_maps(convert(HOSTS["vit"](), name), inputs_of(HOSTS["vit"]())).student:
        sums = A.sum(-1)
        alive = sums > 0  # relu leaves some queries of T2R without weight
        assert float(alive.float().mean()) > 0.5
        torch.testing.assert_close(sums[alive], torch.ones_like(sums[alive]))


def test_every_token_weighs_the_same_in_measurements():
    """The fit of two batches is not the mean of their fits when their lengths differ."""
    student = convert(bert(), "t2r", layers=[1])
    short, long = text((4,)), text((30,), seed=2)
    both, a, b = (measure(student, batches) for batches in ([short, long], [short], [long]))
    assert list(both.kl) == ["bert.encoder.layer.1.attention.self"]  # the other one stays softmax
    for layer in both.kl:
        for h in range(H):
            expected = (4 * a.kl[layer][h] + 30 * b.kl[layer][h]) / 34
            assert both.kl[layer][h] == pytest.approx(expected, rel=1e-4)


def test_maps_fitted_on_short_texts_are_measured_on_long_ones(trained):
    """Normalisers have other sums there: a KL of the training lengths says little."""
    short, long = comes_again(16, n=6), comes_again(16, n=24)
    student = convert(trained, "hedgehog")
    report = distill(student, [short], steps=30, held_out=[long])
    assert report.after.mean() == pytest.approx(measure(student, [long]).mean())
    assert report.after.mean() > 1.2 * measure(student, [short]).mean()
