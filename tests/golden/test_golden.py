"""No number moves unless an integer says so (lra/base/versions.py)."""

from __future__ import annotations

import pytest

from lra.base.versions import PARTS

from . import catalogue, compare, methods


@pytest.mark.parametrize("name", list(catalogue.every()))
def test_numbers_are_those_of_the_declared_version(name: str):
    said = catalogue.problem(name)
    assert not said, said


def test_every_method_and_every_part_has_a_golden_run():
    assert {f"_{name}" for name in PARTS} | {*methods.names()} <= {*catalogue.every()}


def test_no_file_is_left_of_a_run_that_is_gone():
    assert {file.stem for file in compare.RUNS.glob("*.json")} == {*catalogue.every()}
