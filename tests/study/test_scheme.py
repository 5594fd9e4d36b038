"""Schemes: every family has a picture, and it shows how that family's tokens meet."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lra.looks import FAMILIES
from scripts.study import scheme

from ..lra.figures.conftest import Figure

WEIGHTS = dict(scheme.family_weights())


def test_every_family_has_its_panel(tmp_path: Path, drawn: list[Figure]):
    paths = scheme.draw(tmp_path)
    assert [path.name for path in paths if path.suffix == ".png"] == [
        f"scheme-{name}-{page}.png"
        for name in ("luna", "record", "families")
        for page in ("light", "dark")
    ]
    named = [family.name for family in FAMILIES if family.name != "stack"]
    panels = [axes for axes in drawn[-1].axes if axes.get_title("left")]
    assert [" ".join(axes.get_title("left").split()) for axes in panels] == named
    assert [axes.get_xlabel() for axes in panels] == [scheme.CAPTIONS[name] for name in named]


def test_weights_have_the_form_of_their_family():
    def by_distance(weights: np.ndarray) -> bool:
        return np.allclose(weights[1:, 1:], weights[:-1, :-1])

    averages = ("softmax and sparse", "low rank", "fixed kernels", "control")
    assert all(np.allclose(WEIGHTS[name].sum(1), 1) for name in averages)
    ranks = {name: np.linalg.matrix_rank(weights) for name, weights in WEIGHTS.items()}
    assert (ranks["softmax and sparse"], ranks["low rank"]) == (scheme.TOKENS, 3)
    assert (ranks["fixed kernels"], ranks["control"]) == (4, 1)  # features, and one mean
    assert {name for name, weights in WEIGHTS.items() if by_distance(weights)} == {
        "state space",
        "convolution",
        "control",
    }
    causal = [name for name, weights in WEIGHTS.items() if not np.triu(weights, 1).any()]
    assert causal == ["gates", "delta rule"]


def test_the_delta_rule_s_weights_are_its_recurrence():
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 9, 4))
    k = scheme.unit_rows(k)
    state, expected = np.zeros((4, 4)), []
    for t in range(9):
        state = state + 0.9 * np.outer(k[t], v[t] - k[t] @ state)
        expected.append(q[t] @ state)
    np.testing.assert_allclose(scheme.delta(q, k) @ v, expected)


def test_gates_fade_what_came_before_them():
    q = k = np.ones((3, 1))
    weights = scheme.gated(q, k, np.array([0.1, 0.5, 0.25]))
    np.testing.assert_allclose(weights, [[1, 0, 0], [0.5, 1, 0], [0.125, 0.25, 1]])
