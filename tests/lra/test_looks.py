"""Names, colours and markers of methods."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import luna
from lra import looks, methods
from lra.figures.schemes import DARK
from lra.looks import FAMILIES, LUNA, OTHER, beside, look_of
from luna.base import Attention, _classes, register

# What a reader sees who lacks one kind of cone, in linear RGB (Machado et al. 2009).
SEEN = {
    "all": np.eye(3),
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
WHITE = np.sum(TO_XYZ, axis=1)


def lab(colour: str, seen: np.ndarray) -> np.ndarray:
    """Coordinates of a colour in Lab, in which distances are about what the eye makes of them."""
    srgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = np.asarray(TO_XYZ) @ np.clip(np.asarray(seen) @ linear, 0, 1) / WHITE
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("page", ["light", "dark"])
@pytest.mark.parametrize("reader", SEEN)
def test_colours_stay_apart_for_every_reader(reader: str, page: str):
    colours = {LUNA, *(family.colour for family in (*FAMILIES, OTHER))}
    assert len(colours) == 9
    shown = {DARK[colour] for colour in colours} if page == "dark" else colours
    for a, b in itertools.combinations(sorted(shown), 2):
        assert np.linalg.norm(lab(a, SEEN[reader]) - lab(b, SEEN[reader])) > 15, (a, b)


def test_every_method_has_a_name_and_no_two_look_the_same():
    assert set(methods.kept()) <= set(methods.ours()), "kept of a method that there is not"
    seen = [look_of(method) for method in methods.kept()]
    assert len({look.name for look in seen}) == len(seen)
    assert len({(look.colour, look.marker) for look in seen}) == len(seen)
    assert sum(look.colour == LUNA for look in seen) == 1


def test_options_are_told_in_words():
    assert look_of("luna").name == "LUNA"
    named = look_of("luna", {"nonneg": False, "normalise": "rms"})
    assert (named.name, named.family) == ("LUNA, signed, normalised", "learned kernels")
    assert named.colour == look_of("luna").colour
    assert named.marker != look_of("luna").marker
    assert look_of("luna", {"M": 64, "nonneg": "exp"}).name == "LUNA, exponential, M = 64"
    assert look_of("luna", {"M": 64, "L": 1, "nonneg": "exp"}).name == "LUNA, exponential, 64 x 1"
    assert look_of("luna", {}).name == "LUNA as published"
    assert look_of("linear", {}).name == "Linear attention"
    assert looks.in_words({"lr": 0.001, "dwc": "none"}) == "rate 0.001, no local branch"


def test_a_method_of_a_plug_in_has_a_look():
    look = look_of("theirs", {"k": 2})
    assert (look.name, look.family) == ("theirs, k = 2", "other")
    assert look.colour not in {look_of(method).colour for method in methods.kept()}
    assert look.marker == "o"


@pytest.fixture
def registered() -> Iterator[Callable[..., str]]:
    """Registers a method of a plug-in whose class states this, and gives its name."""
    made: list[str] = []

    def put(base: type[Attention] = Attention, **states: str) -> str:
        made.append(f"plug_in_{len(made)}")
        register(made[-1])(type("PlugIn", (base,), states))
        return made[-1]

    yield put
    for name in made:
        _classes.pop(name)


def test_a_plug_in_says_in_its_class_how_it_is_shown(registered):
    look = look_of(registered(title="Theirs", family="gates", marker="*"), {"k": 2})
    assert (look.name, look.family, look.marker) == ("Theirs, k = 2", "gates", "*")
    assert look.colour == look_of("gla").colour
    unheard = look_of(registered(family="gatez"))
    assert (unheard.name, unheard.family) == ("plug_in_1", "other")


def test_a_method_made_of_another_has_its_family_and_not_its_name(registered):
    name = registered(luna.get("linear"))
    assert (look_of(name).name, look_of(name).family) == (name, "fixed kernels")


def test_a_method_without_a_marker_gets_one_that_no_other_of_its_colour_has(
    registered, monkeypatch: pytest.MonkeyPatch
):
    rows = {name: dict(row) for name, row in methods.kept().items()}
    for name in ("s4d", "mega"):
        rows[name]["marker"] = ""
    monkeypatch.setattr(methods, "kept", lambda: rows)
    assert look_of("lru").marker == "P"  # it states one
    alike = ["s4d", "mega", "lru", "ema", "longconv", registered(family="state space")]
    assert len({look_of(name).marker for name in alike}) == len(alike)


def test_a_name_stands_beside_what_is_typed_where_it_says_more():
    assert beside("rff", look_of("rff").name) == "rff (Random Fourier features)"
    assert beside("luna", look_of("luna").name) == "luna"
    assert beside("of_a_plug_in", look_of("of_a_plug_in").name) == "of_a_plug_in"
