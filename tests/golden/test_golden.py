"""No number moves unless an integer says so (lra/base/versions.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest

import luna
from lra.base.versions import PARTS

from . import catalogue, compare

WRITTEN = [name for name in catalogue.every() if compare.file_of(name).exists()]


@pytest.mark.parametrize("name", WRITTEN)
def test_numbers_are_those_of_the_declared_version(name: str):
    for package in catalogue.every()[name].needs:
        pytest.importorskip(package)
    said = catalogue.problem(name)
    assert not said, said


def test_all_that_computes_has_a_golden_run():
    """A new method is tested without; it needs its file before it is committed."""
    assert {f"_{name}" for name in PARTS} == {n for n in catalogue.every() if n[1:] in PARTS}
    missing = [name for name in catalogue.every() if name not in WRITTEN]
    assert not missing, f"no golden run yet: make golden NAME={missing[0]}"


def test_no_file_is_left_of_a_run_that_is_gone():
    assert {file.stem for file in compare.RUNS.glob("*.json")} == {*WRITTEN}


def test_a_method_that_moved_with_a_part_leads_to_the_part(monkeypatch: pytest.MonkeyPatch):
    moved = compare.Moved("loss at step 3", "2.5", "2.25")
    monkeypatch.setattr(catalogue, "stale", lambda name: "")
    monkeypatch.setattr(catalogue, "moved", {"linear": moved, "_step": moved}.get)
    assert catalogue.problem("linear") == (
        "luna/attention/linear.py: the numbers of linear moved (loss at step 3: 2.5 for 2.25) with "
        "the step, see tests/golden/runs/_step.json: raise PARTS['step'] in lra/base/versions.py "
        "to 2, then `make golden`"
    )
    monkeypatch.setattr(catalogue, "moved", {"linear": moved}.get)
    assert catalogue.problem("linear") == (
        "luna/attention/linear.py: the numbers of linear moved (loss at step 3: 2.5 for 2.25): "
        "raise `numerics` of Linear to 2, then `make golden NAME=linear`"
    )


def test_after_an_integer_was_raised_its_file_is_written_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(luna.get("linear"), "numerics", 2)
    assert catalogue.problem("linear") == (
        "luna/attention/linear.py: numerics of the attention is 2, and 1 in "
        "tests/golden/runs/linear.json: write the file again: make golden"
    )
    monkeypatch.setitem(PARTS, "step", replace(PARTS["step"], numerics=3))
    assert "numerics of the step is 3, and 1" in catalogue.problem("softmax")


def test_a_part_that_is_declared_later_makes_no_file_stale(monkeypatch: pytest.MonkeyPatch):
    kept = compare.kept("linear")
    assert kept is not None
    del kept["numerics"]["step"]
    monkeypatch.setattr(compare, "kept", lambda name: kept)
    assert catalogue.stale("linear") == ""
