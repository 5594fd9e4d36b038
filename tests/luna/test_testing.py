"""The conformance suite finds what is wrong, and passes what is right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from luna import base
from luna.errors import LunaError
from luna.testing import CHECKS, Case, check, registered
from luna.testing.run import NAMES, problem_of

from . import wrong


def problems(cls: type) -> dict[str, str]:
    with registered(wrong=cls):
        return {result.name: result.problem for result in check(Case("wrong")) if result.problem}


# A wrong method, the check that finds it, and what the check says.
WRONG = [
    (wrong.MixesTheBatch, "batch", "examples of a batch meet"),
    (wrong.FalselyConvex, "convex", "declare convex=False"),
    (wrong.FalselyRowStochastic, "constant", "declare row_stochastic=False"),
    (wrong.FalselyEquivariant, "permutation", "declare equivariant=False"),
    (wrong.FalselyLinear, "memory", "declare linear_in_n=False"),
    (wrong.DoublesItsSteps, "causal", "steps() after a prompt"),
    (wrong.TakesEveryMaskForAPrefix, "permutation", "declare equivariant=False"),
    (wrong.TakesEveryMaskForAPrefix, "holes", "declare holes_are_time=True"),
    (wrong.LeaksNaN, "padding", "NaN in 5 padded tokens moves real rows"),
    (wrong.DecaysInHoles, "holes", "declare holes_are_time=True"),
    (wrong.Float32Only, "half_precision", "bfloat16 inputs end in an error"),
    (wrong.Detached, "gradients", "a gradient is wrong or detached"),
    (wrong.DeadProjection, "dead_weight", "of qkv.weight.q have no gradient"),
    (wrong.HiddenState, "state", "is not in the state dict"),
    (wrong.DrawsUnsaid, "draws", "declare draws=True"),
    (wrong.AnotherShape, "mixer", "must give hidden states of the shape of x"),
    (wrong.OtherShapesWhenCausal, "causal", "takes a part of the other's parameters"),
    (wrong.TakesASettingsName, "facts", "its option gate is a setting of every method"),
    (wrong.ComplexParameters, "facts", "complex parameters (turn): keep real and imaginary parts"),
    (wrong.CausalByFFT, "future", "if an FFT over all tokens rounds them in, work in chunks"),
    (wrong.AnotherDtype, "mixer", "must give the same, not torch.complex64"),
]


@pytest.mark.parametrize(("cls", "name", "words"), WRONG, ids=lambda x: getattr(x, "__name__", ""))
def test_a_wrong_method_is_found(cls: type, name: str, words: str):
    """By this check, which needs no other one before it."""
    [one] = [check for check in CHECKS if check.name == name]
    with registered(wrong=cls):
        assert words in problem_of(one, Case("wrong"))


def test_a_right_method_passes():
    assert problems(wrong.Values) == {}


def test_an_excuse_that_is_not_needed_is_a_problem():
    cls = type("Excused", (wrong.Values,), {"exempt": {"batch": "it has no batch at all"}})
    found = problems(cls)
    assert "take 'batch' out of exempt" in found["batch"]


def test_the_mixer_of_the_recipe_is_what_it_declares(monkeypatch: pytest.MonkeyPatch):
    # It is known already where somebody has pasted it.
    monkeypatch.delitem(base._classes, "before", raising=False)
    text = Path("docs/extend/mixer.md").read_text(encoding="utf-8")
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "Mixer" in block
    )
    namespace = {"__name__": "luna.mixers.before"}  # as if it were pasted
    with registered():
        exec(code, namespace)
        found = {r.name: r.problem for r in check(Case("before")) if r.problem}
    assert found == {}


def test_checks_have_names_of_their_own_but_those_that_share_an_excuse():
    assert len(CHECKS) > 40
    assert {one.name for one in CHECKS if not one.strict} <= NAMES


def test_each_check_says_in_a_sentence_what_holds():
    assert [one.name for one in CHECKS if not 20 < len(one.says) < 150] == []
    assert {one.name: one.says for one in CHECKS}["one_token"].startswith("n = 1: a row-stochastic")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"row_stochastic": False}, "convex=True contradicts row_stochastic=False"),
        ({"needs_x": True, "cross_form": True}, "needs_x=True contradicts cross_form=True"),
        ({"causal_if_strict": "why"}, "declare causal_form=True too"),
        ({"convx": False}, "there is no trait 'convx'; did you mean convex"),
    ],
)
def test_facts_that_contradict_each_other_are_refused(changes: dict, words: str):
    with pytest.raises(LunaError, match=words.replace("?", ".")):
        base.Attention.declared.but(**changes)
