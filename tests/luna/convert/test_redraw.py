"""Dead heads: reported, without a positive output beyond help, and drawn again once."""

from __future__ import annotations

import pytest
import torch

from luna.convert import attention_maps, convert, distill, feature_parameters
from luna.convert.stage1 import redraw_dead
from luna.convert.swap import feature_maps

from .kit import bert, kill, logits, text


def test_a_dead_head_gives_zeros_finite_gradients_and_a_warning():
    student = convert(bert(), "t2r")
    kill(student, 0, 2)
    name = next(iter(feature_maps(student)))
    A = attention_maps(student, text()).student[0]
    assert float(A[:, 2].abs().max()) == 0
    assert torch.isfinite(logits(student, text())).all()

    report = distill(student, [text()], steps=4)
    assert all(p.isfinite().all() for p in feature_parameters(student).values())
    assert report.before.dead[name][2] == 1.0
    assert report.after.dead[name][2] == 1.0
    assert report.after.dead_heads() == [f"{name} head 2"]
    assert f"{name} head 2 is dead: its features are 0" in report.warnings


def test_a_dead_head_is_drawn_again_once():
    student = convert(bert(), "t2r")
    kill(student, 0, 2)
    name, attention = next(iter(feature_maps(student).items()))
    weight = attention.map.weight.detach()
    others = weight[[0, 1, 3]].clone()
    optimizer = torch.optim.AdamW(feature_parameters(student).values())
    dead = {name: [0.0, 0.1, 1.0, 0.5]}
    records = redraw_dead(student, dead, optimizer, [], 10)
    assert records == [{"layer": name, "head": 2, "step": 10}]
    assert torch.equal(weight[[0, 1, 3]], others)
    assert float(weight[2].abs().max()) > 0
    assert redraw_dead(student, dead, optimizer, records, 20) == []

    kill(student, 0, 2)
    report = distill(student, [text()], steps=30, evaluate_every=10)
    assert [r["head"] for r in report.redrawn] == [2]
    assert report.after.dead_heads() == []


def test_a_shared_map_is_drawn_again_only_when_all_heads_are_dead():
    student = convert(bert(), "luna", share="layer")
    name = next(iter(feature_maps(student)))
    optimizer = torch.optim.AdamW(feature_parameters(student).values())
    assert redraw_dead(student, {name: [1.0, 1.0, 1.0, 0.0]}, optimizer, [], 1) == []
    assert len(redraw_dead(student, {name: [1.0] * 4}, optimizer, [], 1)) == 4


@pytest.mark.parametrize(("nonneg", "dead"), [(True, 1.0), ("softplus", 0.0), ("exp", 0.0)])
def test_a_head_that_dies_under_relu_lives_under_a_positive_output(nonneg, dead):
    student = convert(bert(), "luna", nonneg=nonneg)
    name, phi = next(iter(feature_maps(student).items()))
    with torch.no_grad():
        phi.map.channels.a[1] = 0
        phi.map.channels.g[1] = -1
    report = distill(student, [text()], steps=3)
    assert (report.before.dead[name][1], report.after.dead[name][1]) == (dead, dead)
