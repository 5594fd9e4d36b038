"""Declared versions: what is part of an identity, and options that came later."""

from __future__ import annotations

import inspect

import pytest

import luna
from lra.base import groups, versions
from lra.base.versions import numerics_of
from lra.base.yaml_data import read_yaml
from lra.settings.experiment import identity_of
from lra.settings.presets import usual_options
from luna.linear import KernelAttention


def test_only_raised_numerics_are_part_of_an_identity():
    ones = dict.fromkeys(("attention", "step"), 1)
    before = identity_of({"a": 1}, "data")
    assert identity_of({"a": 1}, "data", ones) == before, "runs from before they were declared"
    raised = identity_of({"a": 1}, "data", ones | {"step": 2})
    assert len({before, raised, identity_of({"a": 1}, "data", ones | {"attention": 2})}) == 3


def test_a_run_has_the_numerics_of_its_method_and_of_its_parts(small):
    numerics = small().experiment.numerics()
    assert {"attention", "backbone", "step", "seeding"} <= {*numerics}
    assert not {"pretraining", "conversion"} & {*numerics}
    assert "pretraining" in small("pretrain=masked").experiment.numerics()
    assert {*versions.PARTS} == {*versions.of_training(pretrained=True), "conversion"}


def test_a_raised_method_is_another_run(small, monkeypatch: pytest.MonkeyPatch):
    before = small().experiment.identity("data")
    monkeypatch.setattr(luna.get("linear"), "numerics", 2)
    assert small().experiment.identity("data") != before


def test_an_option_at_the_value_that_runs_had_is_no_part_of_them(small, monkeypatch):
    before = small("attention.eps=1e-5").experiment
    monkeypatch.setattr(luna.get("linear"), "added", {"eps": 1e-6})
    monkeypatch.setitem(versions.ADDED, "model.dropout", small().model.dropout)
    now = small().experiment
    assert "eps" not in now.settings()["attention"]
    assert "dropout" not in now.settings()["model"]
    assert now.attention["eps"] == 1e-6, "the network still gets it"
    assert small("attention.eps=1e-5").experiment.settings()["attention"]["eps"] == 1e-5
    assert before.settings()["attention"]["eps"] == 1e-5


@pytest.mark.parametrize("name", luna.names())
def test_an_added_option_has_the_value_of_before_as_its_default(name: str):
    """Else a record that lacks it would be read as another run."""
    options, file = luna.options(name), groups.find("attention", name)
    configured = (read_yaml(file) or {}) if file else {}
    for option, value in luna.get(name).added.items():
        assert options[option].default in (value, inspect.Parameter.empty)
        if configured.get(option) == "???":  # which presets fill in
            usual = [usual_options(name, "listops", preset) for preset in ("matched", "published")]
            assert [of_preset[option] for of_preset in usual] == [value, value]
        else:
            assert configured.get(option, value) == value


def test_an_integer_in_a_shared_class_counts_for_all_its_methods(monkeypatch):
    """And beside one of their own."""
    linear, luna_, softmax = (luna.get(name) for name in ("linear", "luna", "softmax"))
    monkeypatch.setattr(KernelAttention, "numerics", 2, raising=False)
    monkeypatch.setattr(luna_, "numerics", 3)
    assert [cls.version() for cls in (softmax, linear, luna_)] == [1, 2, 4]
    assert numerics_of("linear", [])["attention"] == 2
