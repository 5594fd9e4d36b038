"""The claims of LUNA's theory in the quick form of scripts/study/theory: signs, slopes, bounds."""

import importlib
import json
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("kernels", "sampling", "fits", "runtime")


@pytest.fixture(scope="module")
def scripts():
    with pytest.MonkeyPatch.context() as patch, mpl.rc_context():
        patch.syspath_prepend(ROOT / "scripts" / "study" / "theory")
        yield {name: importlib.import_module(name) for name in NAMES}
    for name in NAMES:  # `kernels` is a library's name too
        del sys.modules[name]


def test_exact_kernels_have_their_closed_form(scripts):
    kernels, rng = scripts["kernels"], np.random.default_rng(3)
    x, y = kernels.ball(rng, 20), kernels.ball(rng, 20)
    method = kernels.build(0, M=4, L=2, kernel="rff")  # cos and sin of u / 8^(1/4)
    gaussian = np.exp(-((x - y) ** 2).sum(1) / 2 / 8**0.5)
    np.testing.assert_allclose(kernels.population(method, x, y), gaussian, atol=1e-6)
    phi, u = kernels.features(method, x), x @ method.map.fourier.Omega.numpy()[0]
    np.testing.assert_allclose(kernels.psi_of(method, u), phi[:, ::4] * 2, rtol=1e-9)


def test_c1_kernels_are_positive_semidefinite(scripts):
    numbers, _ = scripts["kernels"].positive(draws=2)
    *kinds, control = numbers["smallest"].items()
    assert max(control[1]) < -1e-3
    for kind, values in kinds:
        assert min(values) > -1e-12, kind
        assert sum(numbers["spectra"][kind] > 1e-12) <= 64, kind  # the rank is M L


def test_c2_the_error_falls_as_the_square_root(scripts):
    features = scripts["sampling"].bounded(log2_mlp=16, log2_rff=18, log2_m=8)[0]["features"]
    for kind, of in features.items():
        assert of["slope"] == pytest.approx(-0.5, abs=0.08), kind
        assert of["rmse"][0] == pytest.approx(of["deviation"] / 4, rel=0.1), kind
        bound = 2 * np.exp(-of["c"] * np.outer(of["levels"] ** 2, of["m"]))
        assert (bound >= of["tails"]).all(), kind


def test_c3_unbounded_features_have_heavier_tails(scripts):
    features = scripts["sampling"].unbounded(log2_mlp=16, log2_rff=18)[0]["features"]
    ends = {kind: of["exponents"][-2] for kind, of in features.items()}
    assert ends["relu psi"] < 1.3 < 1.8 < min(ends["sigmoid psi"], ends["rff"])
    for of in features.values():
        assert of["exponents"][0] > 1.6
        for m, points in of["measured"].items():  # Chernoff, but for the factor 2 of two sides
            for line, factor in (("limit", 0.9), ("bound", 1)):
                least = factor * np.interp(points[:, 0], of["eps"], of[line]) - np.log(2) / int(m)
                assert (points[:, 1] >= least).all(), (line, m)


def test_c4_and_c5_errors_fall_with_width_and_samples(scripts):
    fits, N = scripts["fits"], 4 ** np.arange(3, 7)
    numbers, _ = fits.width((2, 4, 8, 16), (16, 256), fits=2, steps=60, pairs=30)
    for errors in numbers["errors"].values():
        for values in errors.values():
            assert np.median(values[-1]) < 0.3 * np.median(values[0])
    assert numbers["surface"][-1][-1] < 0.6 * numbers["surface"][-1][0]  # with m
    numbers, _ = fits.rademacher(N, (32, 128), signs=100, fits=1, steps=30, hidden=16)
    assert scripts["kernels"].slope(N, numbers["fixed"]) == pytest.approx(-0.5, abs=0.06)
    assert (numbers["fixed"] <= N**-0.5).all()


def test_c6_gives_the_committed_exponents(scripts):
    committed = json.loads((ROOT / "results/theory/theory.json").read_text(encoding="utf-8"))
    for measure, slopes in committed["claims"]["C6"]["slopes"].items():
        assert scripts["runtime"].runtime()[0]["slopes"][measure] == pytest.approx(slopes, rel=1e-5)
