"""Ratios, verdicts and what the budget of a run is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lra.base.errors import UserError
from lra.compute.budget import Budget, Cost, budget_of
from lra.compute.gate import check_budget

from ..conftest import composed
from .kit import TOLERANCE


def budget_with(**cost: int | None) -> Budget:
    limits = {"parameters": 100, "flops": 1000, "examples": None} | cost
    return Budget("luna", Cost(**limits), TOLERANCE)


@pytest.mark.parametrize(
    ("parameters", "flops", "verdict"),
    [
        (100, 1000, "matched"),
        (105, 900, "matched"),  # on the bounds
        (106, 1000, "over budget ×1.06"),
        (100, 1200, "over budget ×1.20"),
        (60, 450, "under ×0.45"),
        (300, 450, "over budget ×3.00"),  # one over, one under
        (100, 5, "under ×0.005"),
        (400_000, 1000, "over budget ×4,000"),
    ],
)
def test_verdicts(parameters: int, flops: int, verdict: str):
    limits = budget_with()
    ratios = limits.ratios(Cost(parameters, flops, 7))
    assert limits.verdict(ratios) == verdict
    assert (limits.excess(ratios) == 0) == (verdict == "matched")


def test_what_is_not_limited_is_not_compared():
    limits = budget_with(parameters=None)
    assert limits.ratios(Cost(5, 1000, 3)) == {"flops": 1.0}
    assert limits.verdict({"flops": 1.0}) == "matched"


def test_any_attention_and_plain_numbers_can_be_the_measure():
    run = composed("task=listops", "attention=linear", "compute.reference=linear")
    assert check_budget(run).ratios == {"parameters": 1.0, "flops": 1.0, "examples": 1.0}
    run = composed(
        "task=listops", "compute.reference={parameters: 426836, flops: 1e9}", "compute=report"
    )
    check = check_budget(run)
    assert check.ratios["parameters"] == pytest.approx(0.5)
    assert check.record()["reference"]["attention"] == "numbers"
    run = composed("compute.reference={examples: 3200000}", "compute=report", "task=listops")
    assert check_budget(run).verdict == "under ×0.50"


def test_every_protocol_is_its_own_measure_of_training():
    for protocol in ("skyformer", "lotformer", "nystrom", "official"):
        run = composed(f"protocol={protocol}", "task=image", "attention=softmax")
        recipe = run.protocol.recipe
        assert budget_of(run).cost.examples == recipe.steps * recipe.batch


def test_a_protocol_from_elsewhere_has_no_measure_of_training():
    run = composed("task=listops")
    elsewhere = replace(run, protocol=replace(run.protocol, name="elsewhere"))
    assert budget_of(elsewhere).cost.examples is None


def test_a_run_with_alibi_is_held_against_the_reference_without_positions():
    """The reference has no ALiBi form itself."""
    short = ("protocol.data.pad_to=64", "protocol.data.max_length=64", "attention=softmax")
    alibi, none = (composed(*short, f"protocol.style.positions={p}") for p in ("alibi", "none"))
    assert budget_of(alibi) == budget_of(none)


def test_a_budget_can_be_an_attention_at_a_preset():
    """That of protocol s4 is the authors' S4D, at the width of the run."""
    words = [
        "task=image8",
        "protocol=s4",
        "model.n_layers=1",
        "model.d_model=16",
        "model.n_heads=1",
    ]
    of_s4d = check_budget(composed(*words, "attention=s4d"))
    assert of_s4d.budget.reference == "s4d:s4"
    assert set(of_s4d.ratios.values()) == {1.0}
    run = composed(*words, "attention=uniform", "attention.preset=published")
    assert check_budget(run).budget == of_s4d.budget
    plain = composed(*words, "attention=s4d", "compute.reference=s4d")
    assert check_budget(plain).budget.cost.parameters != of_s4d.budget.cost.parameters
    for wrong, complaint in (("s4d:s5", "no preset 's5'"), ("s4e:s4", "'s4e' has no preset 's4'")):
        run = composed(*words, "attention=s4d", f"compute.reference={wrong}")
        with pytest.raises(UserError, match=complaint):
            check_budget(run)
