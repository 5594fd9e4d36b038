"""C4 and C5: what scalar functions of some width can represent, and which labels they can fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lra.theory import kernels
from lra.theory.kernels import NODES, WEIGHTS, Array, ball, build, psi_of, slope
from luna.attention.luna import Luna
from luna.kernels.scalar_mlp import ACTIVATIONS

# ---------------------------------------------------------------------- C4


def measure_width(size: Any, seed: int, d: int) -> dict[str, Any]:
    """C4: sup |k - k_NN| over pairs for psi of some width fitted to (cos, sin), whose kernel is the
    Gaussian e^(-|x - y|^2 / 2); with h = e^(|x|^2 / 2) it is softmax's e^(x . y)."""
    rng = np.random.default_rng(seed)
    x, y = ball(rng, size.pairs, d, size.radius), ball(rng, size.pairs, d, size.radius)
    exact = np.exp(-((x - y) ** 2).sum(1) / 2)
    envelope = np.exp(((x**2).sum(1) + (y**2).sum(1)) / 2)
    errors: dict[str, dict[str, list[list[float]]]] = {}
    psis: dict[int, Luna] = {}  # of relu, for the surface
    for activation in ("relu", "tanh"):
        found = errors[activation] = {"psi": [], "gaussian": [], "softmax": []}
        for width in size.widths:
            rows = []
            for i in range(size.fits):
                method = fitted(width, activation, seed + i, size, d)
                psis.setdefault(width, method)
                u = size.radius * NODES
                square = (psi_of(method)(u) - np.stack([np.cos(u), np.sin(u)], -1)) ** 2
                off = np.sqrt((WEIGHTS @ square).sum())
                error = np.abs(kernels.population(psi_of(method), x, y) - exact)
                rows.append((float(off), float(error.max()), float((envelope * error).max())))
            for name, values in zip(found, zip(*rows, strict=True), strict=True):
                found[name].append(list(values))
    medians = {a: {name: [float(np.median(v)) for v in rows] for name, rows in found.items()}
               for a, found in errors.items()}  # fmt: skip
    relu = medians["relu"]
    falls = {name: slope(size.widths[1:], values[1:]) for name, values in relu.items()}
    surface = [[float(np.median([_sampled(psis[width], m, seed + i, x, y, exact)
                                 for i in range(size.draws)])) for m in size.m]
               for width in size.widths]  # fmt: skip
    ends = {a: [m["gaussian"][0], m["gaussian"][-1]] for a, m in medians.items()}
    return {
        "holds": all(last < 0.1 * first for first, last in ends.values()) and falls["psi"] < -1,
        "verdict": f"Gaussian kernel, width {size.widths[0]} to {size.widths[-1]}: the error falls "
        f"from {ends['relu'][0]:.1g} to {ends['relu'][1]:.1g} (relu), {ends['tanh'][0]:.1g} to "
        f"{ends['tanh'][1]:.1g} (tanh); that of relu psi itself as width^{falls['psi']:.1f}",
        "widths": list(size.widths), "m": list(size.m), "errors": errors, "medians": medians,
        "slopes": falls, "surface": surface,
    }  # fmt: skip


def fitted(width: int, activation: Any, seed: int, size: Any, d: int) -> Luna:
    """psi fitted to (cos, sin) in the mean square for u ~ N(0, radius^2): knots at random, one per
    quantile, outer weights by least squares, then all by L-BFGS."""
    options: Any = {"M": 1, "L": 2, "hidden": width, "activation": activation, "nonneg": False}
    method = build(d, seed, projections="gaussian", **options)
    channels: Any = method.map.channels
    u = torch.as_tensor(size.radius * NODES[::2])
    weights = torch.as_tensor(WEIGHTS[::2] * 2).sqrt()[:, None]
    target = torch.stack([u.cos(), u.sin()], -1)
    jitter = torch.rand(channels.f.shape, generator=torch.Generator().manual_seed(seed))
    quantiles = ((torch.arange(width) + jitter) / width).clamp(1e-3, 1 - 1e-3)
    knots = 1.5 * size.radius * 2**0.5 * (2 * quantiles - 1).erfinv()

    @torch.no_grad()
    def solve() -> None:
        for c in range(2):
            hidden = ACTIVATIONS[activation](u[:, None] * channels.e[0, c] + channels.f[0, c])
            matrix = torch.cat([hidden, torch.ones_like(u)[:, None]], 1) * weights
            outer = torch.linalg.lstsq(
                matrix, target[:, c : c + 1] * weights, rcond=1e-8, driver="gelsd"
            ).solution[:, 0]
            channels.a[0, c], channels.g[0, c] = outer[:-1], outer[-1]

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        off = channels(u[None, None, :, None])[0, 0, :, 0] - target
        value = (off * weights).square().sum()
        value.backward()
        return value

    with torch.no_grad():
        channels.f.copy_(-channels.e * knots)
    solve()
    optimiser = torch.optim.LBFGS(
        channels.parameters(), max_iter=size.steps, line_search_fn="strong_wolfe",
        tolerance_grad=1e-12, tolerance_change=1e-14,
    )  # fmt: skip
    optimiser.step(loss)
    solve()
    return method


def _sampled(like: Luna, m: int, seed: int, x: Array, y: Array, exact: Array) -> float:
    """sup |k - k_m| of m projections, with the fitted psi of `like`."""
    channels: Any = like.map.channels
    options: Any = {"L": 2, "hidden": channels.e.shape[-1], "activation": channels.activation}
    method = build(
        x.shape[1], seed, M=m, like=like, nonneg=False, projections="gaussian", **options
    )
    return float(np.abs(kernels.terms(method, x, y).mean(1) - exact).max())


# ---------------------------------------------------------------------- C5


def measure_rademacher(size: Any, seed: int, d: int) -> dict[str, Any]:
    """C5: E |sum_i s_i phi(x_i)| / (N kappa) over signs, kappa = max |phi(x_i)|, for a fixed map;
    for the learned family the largest value that training reaches on random signs."""
    rng = np.random.default_rng(seed)
    x = ball(rng, max(size.N), d, size.radius)
    phi = kernels.features(build(d, seed, projections="gaussian", psi="frozen"), x)
    phi /= np.linalg.norm(phi, axis=1).max()
    fixed = []
    for N in size.N:
        signs = rng.choice([-1.0, 1.0], (size.signs, N))
        fixed.append(float(np.linalg.norm(signs @ phi[:N] / N, axis=1).mean()))
    learned = [[_fitted_to_signs(x[:N], seed + i, size, d) for i in range(size.fits)]
               for N in size.learned_N]  # fmt: skip
    fall, below = (
        slope(size.N, fixed),
        all(r <= N**-0.5 for r, N in zip(fixed, size.N, strict=True)),
    )
    medians = [float(np.median(values)) for values in learned]
    return {
        "holds": below and abs(fall + 0.5) < 0.05,
        "verdict": f"a fixed map: N^{fall:.3f}, {'below' if below else 'NOT below'} the bound "
        f"N^-0.5; trained maps reach {medians[0]:.2f} at N = {size.learned_N[0]} and "
        f"{medians[-1]:.2f} at N = {size.learned_N[-1]}, N^{slope(size.learned_N, medians):.2f}",
        "N": list(size.N), "fixed": fixed, "learned_N": list(size.learned_N), "learned": learned,
        "slope": fall,
    }  # fmt: skip


def _fitted_to_signs(x: Array, seed: int, size: Any, d: int) -> float:
    """The largest |mean_i s_i phi(x_i)| / max_i |phi(x_i)| found in training all of phi."""
    method = build(d, seed, dtype=torch.float32, nonneg=False, hidden=size.hidden)
    tokens = torch.as_tensor(x, dtype=torch.float32)[None, None]
    signs = torch.as_tensor(np.random.default_rng(seed).choice([-1.0, 1.0], len(x))).float()
    optimiser, best = torch.optim.Adam(method.parameters(), lr=size.lr), 0.0
    for _ in range(size.steps):
        phi = method.phi_q(tokens, None)[0, 0]  # (N, D)
        reached = (signs @ phi).norm() / len(x) / phi.norm(dim=1).max()
        best = max(best, reached.item())
        optimiser.zero_grad()
        (-reached).backward()
        optimiser.step()
    return best
