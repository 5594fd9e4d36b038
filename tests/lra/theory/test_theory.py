"""The claims of LUNA's theory in their quick form: signs, slopes and bounds."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lra
from lra import cli
from lra.base import groups
from lra.runs.folder import digest
from lra.theory import draw, fits, kernels, runtime, sampling, spectra, trained
from lra.theory.commands import CLAIMS

from ..conftest import SMALL

REPOSITORY = Path(__file__).resolve().parents[3]
COMMITTED = REPOSITORY / "results" / "theory"
BENCH = REPOSITORY / "results/bench/attention-amd-epyc-1thread-torch2.13.0.json"
MEASURES = {
    "C1": spectra.measure, "C2": sampling.measure_bounded, "C3": sampling.measure_unbounded,
    "C4": fits.measure_width, "C5": fits.measure_rademacher,
}  # fmt: skip


@cache
def quick(claim: str) -> dict[str, Any]:
    sizes = groups.read("theory", "quick")
    return MEASURES[claim](sizes[claim], sizes.seed, sizes.head_dim)


def pairs(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return kernels.ball(rng, n, 5, 2.0), kernels.ball(rng, n, 5, 2.0)


# ---------------------------------------------------------------------- kernels


def test_exact_kernels_are_those_with_a_closed_form():
    x, y = pairs(20)
    gaussian = kernels.population(lambda u: np.stack([np.cos(u), np.sin(u)], -1), x, y)
    np.testing.assert_allclose(gaussian, np.exp(-((x - y) ** 2).sum(1) / 2), atol=1e-6)
    a, b, cosine = kernels.geometry(x, y)
    angle = np.arccos(cosine)  # the kernel of relu: Cho and Saul, 2009
    arc = a * b / (2 * math.pi) * (np.sin(angle) + (math.pi - angle) * cosine)
    relu = kernels.population(lambda u: np.maximum(u, 0)[:, None], x, y)
    np.testing.assert_allclose(relu, arc, atol=1e-4)


@pytest.mark.parametrize("kind", sampling.FEATURES)
def test_the_terms_of_a_map_are_its_kernel_and_psi_is_that_of_its_features(kind: str):
    x, y = pairs(4)
    method = kernels.build(5, 1, M=6, L=2, **sampling.FEATURES[kind])
    phi = kernels.features(method, x)
    product = (phi * kernels.features(method, y)).sum(1)
    np.testing.assert_allclose(kernels.terms(method, x, y).mean(1), product, rtol=1e-12)
    if kind == "rff":
        u, features = x @ method.map.fourier.Omega.numpy()[0], phi[:, ::6]  # its cosine and sine
    else:
        u, features = x @ method.map.projections.weight.detach().numpy()[0, 0], phi[:, :2]
    np.testing.assert_allclose(kernels.psi_of(method)(u), features * 6**0.5, rtol=1e-9)


# ---------------------------------------------------------------------- claims


def test_c1_kernels_are_positive_semi_definite_and_two_maps_are_no_kernel():
    found = quick("C1")
    assert found["holds"]
    for name, values in found["smallest"].items():
        if name == spectra.CONTROL:
            assert max(values) < -1e-3
        else:
            assert min(values) > -1e-12, name
            assert sum(v > 1e-12 for v in found["spectra"][name]) <= 64, name  # the rank is M L


def test_c2_the_error_falls_as_the_square_root_below_its_bound():
    for kind, found in quick("C2")["features"].items():
        assert found["slope"] == pytest.approx(-0.5, abs=0.08), kind
        # The root mean square is sigma / sqrt(m) around the exact kernel.
        assert found["rmse"][0] == pytest.approx(found["deviation"] / 4, rel=0.1), kind
        for eps, tail in zip(found["levels"], found["tails"], strict=True):
            for m, P in zip(found["m"], tail, strict=True):
                assert 2 * math.exp(-found["c"] * m * eps**2) >= P, kind
    assert quick("C2")["features"]["rff"]["B"] == pytest.approx(1)
    # Neither bound is above the other: each kind is held to the sharper of the two.
    assert sampling.bounded_rate(1, 1) == 0.5
    assert sampling.bounded_rate(1, 0.25) == 2


def test_c3_unbounded_features_have_heavier_tails_than_bounded_ones():
    found = quick("C3")["features"]
    ends = {kind: numbers["exponents"][-2] for kind, numbers in found.items()}
    assert ends["relu psi"] < 1.3 < 1.8 < min(ends["sigmoid psi"], ends["rff"])
    assert all(numbers["exponents"][0] > 1.6 for numbers in found.values())
    for numbers in found.values():
        assert numbers["above"]
        # Chernoff: the limit is below what is measured, up to the factor 2 of two sides.
        for m, points in numbers["measured"].items():
            for step, rate in points:
                limit = np.interp(step, numbers["eps"], numbers["limit"])
                assert rate > 0.9 * limit - math.log(2) / int(m)


def test_c4_the_error_falls_with_width_and_the_surface_with_m():
    found = quick("C4")
    for activation, medians in found["medians"].items():
        for name, values in medians.items():
            assert values[-1] < (0.3 if name == "psi" else 0.1) * values[0], (activation, name)
    assert found["slopes"]["psi"] < -1
    assert found["surface"][-1][-1] < 0.6 * found["surface"][-1][0]


def test_c5_complexity_falls_as_the_square_root_below_its_bound():
    found = quick("C5")
    assert found["slope"] == pytest.approx(-0.5, abs=0.06)
    assert all(r <= N**-0.5 for r, N in zip(found["fixed"], found["N"], strict=True))
    learned = [np.median(values) for values in found["learned"]]
    assert learned[0] > learned[-1] > found["learned_N"][-1] ** -0.5 / 2


def test_c6_linear_methods_are_linear_in_the_committed_benchmark():
    found = runtime.measure(BENCH)
    assert found["holds"]
    slopes = found["slopes"]["train_seconds"]
    assert all(slopes[case] < 1.5 for case, linear in found["linear"].items() if linear)
    assert all(slopes[case] > 1.8 for case, linear in found["linear"].items() if not linear)


@pytest.mark.parametrize("method", ["luna", "performer"])
def test_a_start_is_a_draw_like_any_other_and_training_moves_the_kernel(
    method: str, tmp_path: Path, data_dir: Path
):
    places = [f"data_dir={data_dir}", f"runs_dir={tmp_path}", f"attention={method}"]
    steps = ["protocol.recipe.steps=4", "protocol.evaluation.every=2", "protocol.recipe.lr=0.03"]
    record = lra.train(lra.compose([*SMALL, *places, *steps]))
    found = trained.measure([record.folder], data_dir, draws=20)
    assert found["holds"]
    [(name, states)] = found["runs"].items()
    assert name.startswith(f"{method} on listops, ")
    fresh = states["start"]["redrawn"]
    assert fresh[0] / 3 < states["start"]["error"] < fresh[-1] * 3
    assert fresh[0] < fresh[-1]  # they are different draws
    assert states["start"]["spectrum"] != states["trained"]["spectrum"]


def test_only_kernels_of_the_theory_are_measured(tmp_path: Path, data_dir: Path):
    places = [f"data_dir={data_dir}", f"runs_dir={tmp_path}"]
    steps = ["protocol.recipe.steps=2", "protocol.evaluation.every=2"]
    record = lra.train(lra.compose([*SMALL, *places, *steps]))
    with pytest.raises(lra.UserError, match="trained linear: the theory is about"):
        trained.measure([record.folder], data_dir, draws=2)


# ---------------------------------------------------------------------- the command


def test_the_command_writes_numbers_and_pictures_and_draws_them_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["theory", "C6", "--bench", str(BENCH), "--out", str(tmp_path)]
    assert cli.main(words) == 0
    assert "C6  holds: forward + backward" in capsys.readouterr().out
    picture = (tmp_path / "C6.svg").read_bytes()
    (tmp_path / "C6.svg").unlink()
    assert cli.main(["theory", "--draw", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "C6.svg").read_bytes() == picture
    assert cli.main(["theory", "C1", "--draw", "--out", str(tmp_path)]) == 2
    assert "has no numbers of C1" in capsys.readouterr().err
    assert cli.main(["theory", "C6", "--out", str(tmp_path)]) == 2
    assert "name its --bench" in capsys.readouterr().err
    assert cli.main(["theory", "C7", "--out", str(tmp_path)]) == 2
    assert "unknown claim 'C7'" in capsys.readouterr().err


def test_committed_numbers_are_whole_and_every_claim_is_drawn_and_explained():
    facts = json.loads((COMMITTED / "theory.json").read_text(encoding="utf-8"))
    assert facts["digest"] == digest(facts)
    page = (REPOSITORY / "docs" / "theory.md").read_text(encoding="utf-8")
    for claim, found in facts["claims"].items():
        assert found["holds"]
        assert found["size"] == "full"
        assert (COMMITTED / f"{claim}.png").exists()
        assert f"../results/theory/{claim}.png" in page
    assert set(facts["claims"]) == set(CLAIMS) == set(draw.PICTURES)
