"""Colours, lines and markers of rows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from lra.base import groups
from lra.report import looks

from ..synthetic import Make, table

pytest.importorskip("matplotlib")


def test_a_method_looks_the_same_in_every_table(make: Make, runs: Path):
    make("luna", 0.4)
    make("linear", 0.5)
    make("softmax", 0.3)
    every = table(runs).rows
    look = dict(zip([r.attention for r in every], looks.looks(every), strict=True))
    assert len({str(v) for v in look.values()}) == 3
    fewer = [r for r in every if r.attention != "linear"]
    assert looks.looks(fewer) == [look[r.attention] for r in fewer]
    assert looks.places([r for r in every if r.attention == "luna"]) == [0]


def test_all_methods_of_the_project_are_known_and_look_different():
    assert set(groups.names("attention")) == set(looks.KNOWN)
    found = [looks.of_method(name) for name in looks.KNOWN]
    assert len({str(look) for look in found}) == len(found)
    assert len({(look["color"], look["marker"]) for look in found}) == len(found)
    assert len(looks.KNOWN) <= min(looks._place(name) for name in "abcdefghijklmnopqrstuvwxyz")


def test_a_new_method_moves_no_colour_and_takes_none():
    """Its name alone decides on its look, and no method of the list has that look."""
    known = [SimpleNamespace(attention=name) for name in looks.KNOWN]
    before = looks.looks(known)
    added = [SimpleNamespace(attention=name) for name in ("aaa", "mine", "zzz")]
    assert looks.looks([*added, *known])[len(added) :] == before
    assert looks.looks([*known, *added[::-1]])[::-1][: len(added)] == looks.looks(added)
    assert all(look not in before for look in looks.looks(added))
    assert len({str(look) for look in before}) == len(known)


def test_colour_shape_and_filling_stand_for_what_differs(make: Make, runs: Path):
    for attention in ("luna", "linear"):
        for dwc in ("none", "conv1d"):
            for lr in (0.1, 0.01):
                make(attention, 0.4, options={"dwc": dwc}, lr=lr)
    found = table(runs, vary=["protocol.recipe.lr"]).rows
    for key, look in (("marker", "dwc"), ("fillstyle", "lr")):
        seen = {
            (row.options[look], its[key])
            for row, its in zip(found, looks.looks(found), strict=True)
        }
        assert len(seen) == 2, f"{key} stands for {look} alone"
    colours = {
        (row.attention, its["color"]) for row, its in zip(found, looks.looks(found), strict=True)
    }
    assert len(colours) == 2
    explained = [label for label, _ in looks.keys(found, ("marker", "fillstyle"))]
    assert sorted(explained) == ["dwc=conv1d", "dwc=none", "lr=0.01", "lr=0.1"]
