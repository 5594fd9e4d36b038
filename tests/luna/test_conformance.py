"""The suite of luna/testing on every registered method, with options and under every profile: a
method joins by existing.

A check that does not apply to a method holds by having nothing to do. What a method is exempt from
must fail, or the excuse is not needed.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch

import luna
from luna.kernels import cpu
from luna.testing import CHECKS, Case, Check, graphs
from luna.testing.run import excuse_of, exempt_of, problem_of
from luna.testing.subject import Subject

from .conftest import all_cases, strict_cases

CASES = {str(case): case for case in all_cases()}
WHOLE = strict_cases()  # others lack a part of the contract by their definition
RUN = [
    pytest.param(check, case, id=f"{check.name}-{case}")
    for check in CHECKS
    for case in CASES.values()
    if check.applies(case) and (case in WHOLE or not check.strict)
    if not check.slow and check.name != "speed"  # no test is timed
]


@cache
def exempt(name: str) -> dict[str, str]:
    """Of a case, by its name: a network is built once to ask it, and not for each check."""
    return exempt_of(CASES[name])


@pytest.mark.parametrize(("check", "case"), RUN)
def test_it_is_what_it_declares(check: Check, case: Case):
    reason = excuse_of(check, exempt(str(case)))
    problem = problem_of(check, case)
    if reason:
        assert problem, f"it is exempt ({reason}) and the check holds"
    else:
        assert not problem


# ---------------------------------------------------------------------- torch.compile

# (method, profile) whose training step leaves the graph, and why: the rest of it is compiled.
BREAKS = {
    ("bigbird", "published"): "its graph comes from numpy's generator",
    ("bigbird", "official"): "its graph comes from numpy's generator",
    ("informer", "strict"): "draws samples from its generator",
    ("informer", "published"): "draws samples from its generator",
    ("klt", "strict"): "draws samples from its generator",
    ("performer", "official"): "redraws its features in every forward",
    ("reformer", "official"): "draws rotations from its generator",
    ("skyformer", "strict"): "draws landmarks from its generator",
    ("skyformer", "published"): "draws landmarks from its generator",
}
SHORTER = {"lotformer": {"half_steps": 2}}  # compiling takes as long as there are steps
TRAINED = [(name, profile) for name in luna.names() for profile in luna.get(name).profiles]
# One of each kind: feature maps and custom operators, a product of weights, windows, low rank,
# hashing; a break of the graph, and profiles that draw.
TYPICAL = {
    ("luna", "strict"),
    ("linear", "strict"),
    ("softmax", "official"),
    ("longformer", "strict"),
    ("nystrom", "strict"),
    ("reformer", "strict"),
    ("informer", "published"),
    ("performer", "official"),
}


def typical(name: str, profile: str) -> object:
    marks = () if (name, profile) in TYPICAL else pytest.mark.rest
    return pytest.param(name, profile, marks=marks)


def compiled_step(name: str, profile: str, **how: object) -> None:
    """A compiled training step equals the eager one, values and gradients."""
    subject = Subject.of(Case(name, SHORTER.get(name, {}), profile))
    graphs.compiled_step(subject, **how)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # the compiler's own,
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # both
@pytest.mark.parametrize(("name", "profile"), [typical(*which) for which in TRAINED])
def test_compiled_graph_equals_eager(name: str, profile: str):
    """In one graph, but for the methods that declare a break: those must have one. Backward passes
    are compiled under strict, three times as slow; the other profiles share most of them."""
    backend, breaks = "aot_eager" if profile == "strict" else "eager", (name, profile) in BREAKS
    if breaks:
        with pytest.raises(torch._dynamo.exc.Unsupported):
            compiled_step(name, profile, backend=backend, fullgraph=True)
    compiled_step(name, profile, backend=backend, fullgraph=not breaks)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize(
    ("name", "profile"),
    [typical(name, "strict") for name in luna.names() if (name, "strict") not in BREAKS],
)
def test_compiled_graph_needs_no_numba(name: str, profile: str, monkeypatch: pytest.MonkeyPatch):
    """A warning that the compiler cannot trace once broke LUNA's."""
    monkeypatch.setattr(cpu, "AVAILABLE", False)
    compiled_step(name, profile, backend="aot_eager", fullgraph=True)


@pytest.mark.rest
def test_machine_code_equals_eager():
    """The others are compiled to their graphs only."""
    compiled_step("luna", "strict", fullgraph=True)
