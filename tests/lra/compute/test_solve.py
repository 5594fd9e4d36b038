"""The solver finds the closest setting of a method's knobs, and knobs are checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import luna
from lra.base.errors import UserError
from lra.compute.budget import Budget, Cost
from lra.compute.count import count_run
from lra.compute.gate import check_budget
from lra.compute.solve import closest, compare, knob_values, solve
from lra.results.record import read_record
from lra.training import run as runner

from ..conftest import composed
from .kit import TOLERANCE, budget, shipped


def test_the_solver_finds_the_closest_of_all_settings():
    """Against the whole network counted at every setting."""
    run = composed("task=pathfinder", "attention=nystrom", "compute.solve=true")
    run = replace(run, compute=replace(run.compute, knobs={"landmarks": [48, 64, 68, 72, 90, 96]}))
    limits = budget("pathfinder")

    def away(landmarks: int) -> float:
        count = count_run(run, run.attention | {"landmarks": landmarks})
        return abs(count.flops / limits.cost.flops - 1)

    best = min(run.compute.knobs["landmarks"], key=away)
    solved_run, changed = solve(run, limits)
    assert solved_run.attention == run.attention | {"landmarks": best}
    assert changed == {"landmarks": (72, 68)}
    assert run.attention["landmarks"] == 72  # the run it was given is as it was


def test_it_prefers_what_fits_to_what_is_close_in_flops():
    """Hedgehog's widest map within the parameters, though a wider one is closer in FLOPs."""
    run = composed("task=image", "attention=hedgehog", "attention.preset=shared_map")
    best, limits = closest(run, budget("image")), budget("image")
    assert best.excess == 0
    wider = compare(run, limits, {"d_out": 108})
    assert wider.ratios["parameters"] > 1.05
    assert abs(wider.ratios["flops"] - 1) < abs(best.ratios["flops"] - 1)


@pytest.mark.parametrize("attention", ["nystrom", "linformer", "longformer", "hedgehog"])
def test_a_setting_is_counted_as_the_whole_network_is(attention: str):
    """Shared and per layer, products and definitions, with the pair of texts and the branch."""
    words = ("task=retrieval", f"attention={attention}", "attention.dwc=conv1d", "compute=report")
    words += ("attention.share_layers=true",) if attention == "linformer" else ()
    run = composed(*words)
    limits = Budget("numbers", Cost(1, 1, None), TOLERANCE)  # ratios are the counts themselves
    counted = count_run(run)
    ratios = compare(run, limits, {}).ratios
    assert ratios == {"parameters": counted.parameters, "flops": counted.flops}


def test_a_tied_knob_sets_both_of_its_options():
    run = composed("attention=longformer", "compute.reference=bigbird", "compute.solve=true")
    options = check_budget(run).run.attention
    assert options["left"] == options["right"] != 164


def test_settings_that_exclude_each_other_are_left_out():
    """An identity needs d_out = head_dim."""
    run = composed("attention=hedgehog", "attention.init=identity")
    assert closest(run, budget("listops")).options == {"d_out": 32}


def test_what_was_solved_is_trained_and_recorded(small, capsys):
    words = ("attention=performer", "attention.m=8", "compute=report", "compute.solve=true")
    run = small(*words, "compute.reference=luna", "protocol.recipe.steps=10")
    path = runner.train(run)
    record = read_record(path)
    solved = record["attention.m"]
    assert solved != 8
    assert f"solved: attention.m={solved}, it was 8" in capsys.readouterr().out
    assert record["compute.solved"] == {"m": [8, solved]}
    assert record["settings.attention.m"] == solved
    assert runner.train(run) == path  # the same command finds the run it has already done
    assert "already finished" in capsys.readouterr().out


def test_every_knob_is_an_option_and_every_default_lies_in_its_range():
    for attention in luna.names():
        run = shipped("listops", attention)
        for knob, spec in run.compute.knobs.items():
            values = knob_values(attention, knob, spec)
            assert knob in luna.options(attention)
            for preset in ("matched", "published"):
                value = shipped("listops", attention, preset).attention[knob]
                assert value is None or values[0] <= value <= values[-1], (attention, preset)


@pytest.mark.parametrize("spec", [{"min": 9, "max": 8}, {"min": 1.5, "max": 8}, [], "8-64", None])
def test_an_invalid_range_is_refused(spec: Any):
    with pytest.raises(UserError, match=r"knobs.m of attention 'performer' must be a list of val"):
        knob_values("performer", "m", spec)


def test_a_mistake_in_another_option_is_told():
    run = composed("attention=performer", "compute.solve=true")
    wrong = replace(run, attention=run.attention | {"redraw": -1})
    with pytest.raises(luna.LunaError, match="redraw"):
        check_budget(wrong)


def test_a_knob_that_is_no_option_is_refused():
    run = composed("attention=performer", "compute.solve=true")
    wrong = replace(run, compute=replace(run.compute, knobs={"width": [1, 2]}))
    with pytest.raises(UserError, match="the knob 'width', which is not one of its options"):
        check_budget(wrong)
