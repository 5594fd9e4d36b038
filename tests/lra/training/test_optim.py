"""Schedules are those of the released code, and the optimiser is the one of 2020."""

from __future__ import annotations

import io
import math
from typing import ClassVar

import pytest
import torch
from torch import nn

from lra.base.config import Clip, Recipe, Schedule
from lra.base.errors import UserError
from lra.training import optimizer as optimizers
from lra.training import schedule as schedules
from luna.base import Method, Rate


def recipe(schedule, *, lr=1.0, warmup=10, steps=100, **changes):
    values = {"betas": [0.9, 0.98], "eps": 1e-9, "weight_decay": 0.0} | changes
    return Recipe(
        batch=1,
        steps=steps,
        warmup=warmup,
        schedule=Schedule[schedule],
        lr=lr,
        clip=Clip.none,
        clip_at=1.0,
        **values,
    )


def weights(dtype=torch.float32):
    return nn.Parameter(torch.ones(3, dtype=dtype))


def trained_by(network, rule):
    """Its optimiser and its schedule."""
    optimizer = optimizers.build_optimizer(network, rule)
    return optimizer, schedules.build_schedule(optimizer, rule)


def trace(rule, upto=None):
    """The (lr, beta1) that each optimiser step sees."""
    p = weights()
    optimizer, scheduler = trained_by(nn.ParameterList([p]), rule)
    seen = []
    for _ in range(upto or rule.steps):
        group = optimizer.param_groups[0]
        seen.append((group["lr"], group["betas"][0]))
        p.grad = torch.ones_like(p)
        optimizer.step()
        scheduler.step()
    return seen


LISTOPS = recipe("rsqrt", lr=0.05, warmup=1000, steps=5000)
RETRIEVAL = recipe("rsqrt", lr=0.05, warmup=8000, steps=5000)
IMAGE = recipe("cosine", lr=5e-4, warmup=175, steps=35_000)
PATHFINDER = recipe("cosine", lr=1e-3, warmup=312, steps=62_400)


@pytest.mark.parametrize(
    ("rule", "s", "lr"),
    [
        (LISTOPS, 1000, 1.5811389e-3),
        (LISTOPS, 4999, 7.0717750e-4),
        (RETRIEVAL, 4999, 3.4931576e-4),
        (IMAGE, 175, 5e-4),
        (IMAGE, 17500, 2.5392682e-4),
        (IMAGE, 34999, 3.1195358e-8),
        (PATHFINDER, 31200, 5.0785363e-4),
    ],
)
def test_official_check_values(rule, s, lr):
    got = rule.lr * schedules.SCHEDULES[rule.schedule](s, rule)
    assert got == pytest.approx(lr, rel=1.2e-7)  # one unit in the last place of float32


@pytest.mark.parametrize(
    ("rule", "lrs"),
    [
        (recipe("constant", lr=2.0, warmup=4, steps=7), [0, 0.5, 1, 1.5, 2, 2, 2]),
        (recipe("constant", lr=2.0, warmup=0, steps=3), [2, 2, 2]),
        (recipe("rsqrt", lr=2.0, warmup=4, steps=5), [0, 0.25, 0.5, 0.75, 1]),
        (recipe("cosine", lr=2.0, warmup=2, steps=4), [0, 1, 2, 1 + math.sqrt(0.5)]),
    ],
)
def test_a_warm_up_begins_at_zero(rule, lrs):
    assert [lr for lr, _ in trace(rule)] == pytest.approx(lrs)


@pytest.mark.parametrize(("warmup", "steps"), [(312, 5000), (175, 500), (2, 9)])
def test_onecycle_is_torchs_own_with_its_momentum_cycle(warmup, steps):
    p = weights()
    other = torch.optim.AdamW([p], lr=2e-4, betas=(0.9, 0.999))
    reference = torch.optim.lr_scheduler.OneCycleLR(
        other, max_lr=2e-4, pct_start=warmup / steps, anneal_strategy="linear", total_steps=steps
    )
    expected = []
    for _ in range(steps):
        expected.append((other.param_groups[0]["lr"], other.param_groups[0]["betas"][0]))
        p.grad = torch.ones_like(p)
        other.step()
        if len(expected) < steps:
            reference.step()
    rule = recipe("onecycle", lr=2e-4, warmup=warmup, steps=steps, betas=[0.9, 0.999])
    optimizer, _ = trained_by(nn.ParameterList([weights()]), rule)
    assert optimizer.param_groups[0]["betas"] == (0.95, 0.999)
    got = trace(rule)
    assert torch.tensor(got, dtype=torch.float64) == pytest.approx(
        torch.tensor(expected, dtype=torch.float64), rel=1e-9
    )


@pytest.mark.parametrize("warmup", [0, 1])
def test_onecycle_without_a_rise_starts_at_the_peak(warmup):
    got = trace(recipe("onecycle", warmup=warmup, steps=11))
    assert got[0] == pytest.approx((1.0, 0.85))
    assert got[10] == pytest.approx((1 / 250_000, 0.95))


def test_cosine_floor():
    got = [lr for lr, _ in trace(recipe("cosine_floor", warmup=100, steps=1100))]
    expected = {0: 0.1 + 0.9 / 100, 49: 0.55, 99: 1, 100: 1, 600: 0.7, 1099: 0.4}
    assert {step: got[step] for step in expected} == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("schedule", list(Schedule))
def test_every_schedule_survives_a_budget_that_leaves_no_warm_up(schedule):
    lrs = [lr for lr, _ in trace(recipe(schedule.name, warmup=0, steps=1), upto=3)]
    assert all(math.isfinite(lr) and lr >= 0 for lr in lrs)
    assert lrs[0] > 0


@pytest.mark.parametrize(
    ("eps", "decay", "betas"), [(1e-9, 0.1, [0.9, 0.98]), (1e-2, 0.5, [0.5, 0.7])]
)
def test_adamw_is_flaxs_adam(eps, decay, betas):
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(5, 4, dtype=torch.float64))
    rule = recipe("rsqrt", lr=0.5, warmup=4, steps=30, eps=eps, weight_decay=decay, betas=betas)
    optimizer, scheduler = trained_by(nn.ParameterList([p]), rule)
    theta, m, v = p.detach().clone(), torch.zeros_like(p), torch.zeros_like(p)
    for s in range(30):
        g = torch.randn_like(theta)
        p.grad = g.clone()
        optimizer.step()
        scheduler.step()

        lr = 0.5 * min(1, s / 4) / math.sqrt(max(s, 4))
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        m_hat, v_hat = m / (1 - betas[0] ** (s + 1)), v / (1 - betas[1] ** (s + 1))
        theta = theta - lr * m_hat / (v_hat.sqrt() + eps) - lr * decay * theta
        torch.testing.assert_close(p.detach(), theta, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("schedule", list(Schedule))
def test_a_reloaded_run_goes_on_exactly(schedule):
    def steps(p, optimizer, scheduler, k):
        seen = []
        for _ in range(k):
            p.grad = p.detach().sin()
            optimizer.step()
            scheduler.step()
            group = optimizer.param_groups[0]
            seen.append((p.tolist(), group["lr"], group["betas"]))
        return seen

    rule = recipe(schedule.name, lr=0.1, warmup=5, steps=20)
    p, file = weights(), io.BytesIO()
    one = trained_by(nn.ParameterList([p]), rule)
    steps(p, *one, 7)
    torch.save({"p": p.detach(), "states": [part.state_dict() for part in one]}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)  # plain values and tensors only
    q = nn.Parameter(saved["p"].clone())
    two = trained_by(nn.ParameterList([q]), rule)
    for part, state in zip(two, saved["states"], strict=True):
        part.load_state_dict(state)
    assert steps(p, *one, 13) == steps(q, *two, 13)


class Decaying(Method):
    """A method with a log decay, whose rate is limited, and a table without weight decay."""

    rates: ClassVar = {"log_A": Rate(highest=0.1), "*.table": Rate(decay=False)}

    def __init__(self):
        super().__init__(seed=0)
        self.name = "decaying"
        self.log_A = weights()
        self.inner = nn.Module()
        self.inner.table = weights()
        self.other = weights()


def test_methods_have_rates_of_their_own():
    """The schedule is the same, scaled to the highest rate."""
    rule = recipe("constant", lr=1.0, warmup=4, steps=10, weight_decay=0.5)
    network = nn.Sequential(nn.Linear(1, 1), Decaying())
    optimizer, scheduler = trained_by(network, rule)
    plain, capped, table = optimizer.param_groups
    assert [len(group["params"]) for group in (plain, capped, table)] == [3, 1, 1]
    assert capped["params"] == [network[1].log_A]
    assert [group["weight_decay"] for group in (plain, capped, table)] == [0.5, 0.5, 0.0]
    seen = []
    for _ in range(5):
        seen.append([group["lr"] for group in (plain, capped, table)])
        optimizer.step()
        scheduler.step()
    assert seen == [
        pytest.approx(row)
        for row in (
            [0, 0, 0],
            [0.25, 0.025, 0.25],
            [0.5, 0.05, 0.5],
            [0.75, 0.075, 0.75],
            [1, 0.1, 1],
        )
    ]
    scheduler.load_state_dict(scheduler.state_dict())


def test_the_highest_rate_is_that_of_the_schedule_and_not_of_the_recipe():
    """rsqrt's recipe has lr=0.05 for a peak of 0.0016: a highest rate of 0.1 changes nothing."""
    optimizer, _ = trained_by(Decaying(), LISTOPS)
    for group, highest in zip(optimizer.param_groups, [None, 0.001, 0.1], strict=True):
        group["highest"] = highest
    plain, capped, free = schedules.build_schedule(optimizer, LISTOPS).lr_lambdas
    assert 0.05 * plain(1000) == pytest.approx(1.5811389e-3)
    assert 0.05 * capped(1000) == pytest.approx(0.001)
    assert free(1000) == plain(1000)
    assert capped(4999) / plain(4999) == pytest.approx(capped(1000) / plain(1000))


def test_a_rate_that_matches_nothing_is_refused(monkeypatch):
    monkeypatch.setattr(Decaying, "rates", {"log_a": Rate(highest=0.1)})
    with pytest.raises(UserError, match=r"'decaying' has a rate for parameters named 'log_a', and"):
        trained_by(Decaying(), recipe("constant"))


def test_a_protocol_has_rates_of_single_parameters():
    """By patterns, over what a method asks for; of what remains the schedule and decay of all."""
    rule = recipe(
        "constant",
        lr=1.0,
        warmup=4,
        steps=10,
        weight_decay=0.5,
        rates=[
            {"of": ["*.absent", "*.log_A"], "lr": 0.5},
            {"of": ["*.other"], "lr": 0.02},
            {"of": ["*other"], "lr": 9.0},
        ],
        undecayed=["0.bias", "*.log_A"],
    )
    network = nn.Sequential(nn.Linear(1, 1), Decaying())
    optimizer, scheduler = trained_by(network, rule)
    for _ in range(4):
        optimizer.step()
        scheduler.step()
    of = {
        id(p): (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for p in group["params"]
    }
    found = {name: of[id(p)] for name, p in network.named_parameters()}
    assert found == {
        "0.weight": (1.0, 0.5),
        "0.bias": (1.0, 0.0),
        "1.log_A": (0.5, 0.0),
        "1.other": (0.02, 0.5),
        "1.inner.table": (1.0, 0.0),
    }


def test_the_full_cosine_is_that_of_transformers():
    """It ends at 0 one step behind the last."""
    rule = recipe("cosine_full", lr=1.0, warmup=5, steps=25)
    theirs = [s / 5 if s < 5 else 0.5 * (1 + math.cos(math.pi * (s - 5) / 20)) for s in range(26)]
    assert [lr for lr, _ in trace(rule, upto=26)] == pytest.approx(theirs)
    assert theirs[-1] == 0
