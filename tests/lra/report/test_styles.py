"""Colours, lines and markers of rows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from lra.base import groups
from lra.report import styles

from ..synthetic import Make, table

pytest.importorskip("matplotlib")


def test_all_methods_of_the_project_are_known_and_look_different():
    assert set(groups.names("attention")) == set(styles.METHODS)
    found = [styles.of_method(name) for name in styles.METHODS]
    assert len({str(style) for style in found}) == len(found)
    assert len({(style["color"], style["marker"]) for style in found}) == len(found)
    assert len(styles.METHODS) <= min(styles._place(name) for name in "abcdefghijklmnopqrstuvwxyz")


def test_a_new_method_moves_no_colour_and_takes_none():
    """Its name alone decides on its style, and no method of the list has that style."""
    known = [SimpleNamespace(attention=name) for name in styles.METHODS]
    before = styles.styles_of(known)
    added = [SimpleNamespace(attention=name) for name in ("aaa", "mine", "zzz")]
    assert styles.styles_of([*added, *known])[len(added) :] == before
    assert styles.styles_of([*known, *added[::-1]])[::-1][: len(added)] == styles.styles_of(added)
    assert all(style not in before for style in styles.styles_of(added))
    assert len({str(style) for style in before}) == len(known)


def test_colour_shape_and_filling_stand_for_what_differs(make: Make, runs: Path):
    for attention in ("luna", "linear"):
        for dwc in ("none", "conv1d"):
            for lr in (0.1, 0.01):
                make(attention, 0.4, options={"dwc": dwc}, lr=lr)
    found = table(runs, vary=["protocol.recipe.lr"]).rows
    for key, style in (("marker", "dwc"), ("fillstyle", "lr")):
        seen = {
            (row.options[style], its[key])
            for row, its in zip(found, styles.styles_of(found), strict=True)
        }
        assert len(seen) == 2, f"{key} stands for {style} alone"
    colours = {
        (row.attention, its["color"])
        for row, its in zip(found, styles.styles_of(found), strict=True)
    }
    assert len(colours) == 2
    explained = [label for label, _ in styles.keys(found, ("marker", "fillstyle"))]
    assert sorted(explained) == ["dwc=conv1d", "dwc=none", "lr=0.01", "lr=0.1"]
