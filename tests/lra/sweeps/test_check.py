"""A sweep is looked at before its first run: each value once, and those of a search never."""

from __future__ import annotations

import itertools

import pytest

from lra.base.errors import UserError
from lra.sweeps import check
from lra.sweeps.check import check_sweep, each_value

DEMO = ("experiment=demo", "attention=luna", "attention.M=8,0")


def test_each_value_is_looked_at_once():
    axes = [[f"a={i}" for i in range(20)], [f"b={i}" for i in range(30)], ["c=1"]]
    jobs = [list(words) for words in itertools.product(*axes)]
    seen = [new for _, new in each_value(jobs)]
    assert len(seen) == 1 + 19 + 29
    assert {word for new in seen[1:] for word in new} == {*axes[0][1:], *axes[1][1:]}
    assert not list(each_value([]))


def test_the_value_is_named_and_its_words_only_where_the_error_does_not():
    with pytest.raises(UserError, match=r"^attention\.M=0: luna\.M must be .*; no run of this"):
        check_sweep(DEMO)
    with pytest.raises(UserError, match=r"^seed=-2 is out of range: .*; no run of this sweep was"):
        check_sweep([*DEMO[:2], "seed=1,-2"])


def test_a_network_that_needs_a_device_is_left_for_its_turn(monkeypatch: pytest.MonkeyPatch):
    def build(*_: object) -> None:
        raise NotImplementedError("no values on the meta device")

    monkeypatch.setattr("lra.compute.count.build", build)
    check_sweep(DEMO)


def test_a_search_chooses_its_values_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(check, "jobs", None)
    check_sweep(DEMO, "hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper")
