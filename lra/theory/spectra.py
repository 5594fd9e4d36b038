"""C1: every kernel phi(x) . phi(y) is positive semi-definite."""

from __future__ import annotations

from typing import Any

import numpy as np

from lra.theory.kernels import Array, build, features

# Every kind of feature map that LUNA's options make, at the same width M L = 64.
VARIANTS: dict[str, dict[str, Any]] = {
    "published: relu outputs": {},
    "recommended: exp outputs": {"M": 64, "L": 1, "nonneg": "exp"},
    "signed outputs": {"nonneg": False},
    "sigmoid units": {"nonneg": False, "activation": "sigmoid"},
    "gaussian projections, frozen psi": {"projections": "gaussian", "psi": "frozen"},
    "scalar envelope": {"envelope": "scalar"},
    "scalar envelope of any sign": {"envelope": "scalar", "envelope_squash": "none"},
    "vector envelope": {"envelope": "vector"},
    "norm envelope, exp": {"envelope": "norm", "envelope_squash": "exp"},
    "bank_coef": {"kernel": "bank_coef"},
    "bank_coef_concat": {"kernel": "bank_coef_concat"},
    "rff": {"kernel": "rff"},
    "rff with phases": {"kernel": "rff", "phases": True},
}
CONTROL = "two maps: phi_q . phi_k, symmetric part"  # to which the claim does not apply
TOLERANCE = 1e-12  # times the largest eigenvalue: rounding of float64


def spectrum(method: Any, x: Array) -> Array:
    """Eigenvalues of K_ij = phi_q(x_i) . phi_k(x_j), of its symmetric part if K is not symmetric,
    divided by the largest, falling."""
    K = features(method, x) @ features(method, x, keys=True).T
    values = np.linalg.eigvalsh((K + K.T) / 2)[::-1]
    return values / values[0]


def measure(size: Any, seed: int, d: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((size.tokens, d))
    spectra: dict[str, list[float]] = {}
    smallest: dict[str, list[float]] = {}
    for name, options in (VARIANTS | {CONTROL: {"tie_qk": False}}).items():
        draws = [spectrum(build(d, seed + i, **options), x) for i in range(size.draws)]
        spectra[name] = draws[0].tolist()
        smallest[name] = [float(values[-1]) for values in draws]
    worst = min(min(values) for name, values in smallest.items() if name != CONTROL)
    control = max(smallest[CONTROL])
    return {
        "holds": worst >= -TOLERANCE and control < -1e-3,
        "verdict": f"{len(VARIANTS)} kinds of map: the smallest eigenvalue is {worst:.0e} of "
        f"the largest, rounding; of two maps, which are no kernel, {control:.2f} or less",
        "spectra": spectra,
        "smallest": smallest,
    }
