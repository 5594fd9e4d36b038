"""C2 and C3: how far the kernel k_m of m random projections lies from k, for one pair of tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from lra.theory import kernels
from lra.theory.kernels import NODES, WEIGHTS, Array, bounds, build, population, slope

FEATURES: dict[str, dict[str, Any]] = {
    "relu psi": {},  # as published: unbounded
    "sigmoid psi": {"nonneg": False, "activation": "sigmoid"},
    "rff": {"kernel": "rff"},
}
BATCH = 2**18  # projections drawn at once
SEEN = 20  # a probability is shown if that many draws lie in the tail


class Pool(NamedTuple):
    """Independent X_i of one pair of tokens x, y (1, d)."""

    X: Array
    x: Array
    y: Array
    psi: kernels.Psi

    def errors(self, m: int, k: float) -> Array:
        """|k_m - k| of as many independent maps with m projections as there are."""
        return np.abs(self.X[: len(self.X) // m * m].reshape(-1, m).mean(1) - k)

    @property
    def norm(self) -> float:
        return float(max(np.linalg.norm(self.x), np.linalg.norm(self.y)))


def pool(kind: str, size: Any, seed: int, d: int) -> Pool:
    """X_i of one psi, drawn with `seed`, for a pair of tokens in a ball."""
    x, y = kernels.ball(np.random.default_rng(seed), 2, d, size.radius)[:, None]
    rff = kind == "rff"  # cheap: more draws
    count = 2 ** (size.log2_rff if rff else size.log2_terms)
    options = FEATURES[kind] | ({"L": 2} if rff else {"projections": "gaussian"})
    first = build(d, seed, M=1, **options)
    found = []
    for i in range(-(-count // BATCH)):
        wide = options | {"M": min(count, BATCH), "dtype": torch.float32}
        many = build(d, seed + 1 + i, like=None if rff else first, **wide)
        found.append(kernels.terms(many, x, y)[0])
    return Pool(np.concatenate(found), x, y, kernels.psi_of(first))


# ---------------------------------------------------------------------- C2


def bounded_rate(B: float, Lambda: float) -> float:
    """c of P(|k_m - k| >= eps) <= 2 exp(-c m eps^2).

    As a function of w_i, X_i has the Lipschitz constant 2 B Lambda (product rule), and a Gaussian's
    concentration gives 1 / (8 B^2 Lambda^2); |X_i| <= B^2 gives Hoeffding's 1 / (2 B^4).
    """
    return max(1 / (8 * B**2 * Lambda**2), 1 / (2 * B**4))


def measure_bounded(size: Any, seed: int, d: int) -> dict[str, Any]:
    """C2: tails and root mean square of the error."""
    found, verdicts, holds = {}, [], True
    for kind in ("sigmoid psi", "rff"):
        drawn = pool(kind, size, seed, d)
        (k,), deviation = population(drawn.psi, drawn.x, drawn.y), drawn.X.std()
        B, steepest = bounds(drawn.psi)
        Lambda = float(np.linalg.norm(steepest)) * drawn.norm
        c, ms = bounded_rate(B, Lambda), [2**i for i in range(4, size.log2_m + 1)]
        levels = [float(level * deviation) for level in size.levels]
        errors = {m: drawn.errors(m, k) for m in ms}
        rmse = [float(np.sqrt(np.mean(errors[m] ** 2))) for m in ms]
        tails = [[float(np.mean(errors[m] >= eps)) for m in ms] for eps in levels]
        limits = 2 * np.exp(-c * np.square(levels)[:, None] * ms)
        above = bool((limits >= tails).all())
        rates = [_rate(ms, tail, len(drawn.X)) for tail in tails]
        kept = [(eps, rate) for eps, rate in zip(levels, rates, strict=True) if rate]
        exponent, fall = slope(*zip(*kept, strict=True)), slope(ms, rmse)
        holds &= above and abs(fall + 0.5) < 0.05 and abs(exponent - 2) < 0.5
        verdicts.append(f"{kind}: RMSE ~ m^{fall:.3f}, -log P ~ m ε^{exponent:.2f}, the bound is "
                        f"{'above' if above else 'NOT above'} every tail")  # fmt: skip
        found[kind] = {
            "k": float(k), "B": B, "Lambda": Lambda, "deviation": float(deviation), "c": c,
            "m": ms, "levels": levels, "rmse": rmse, "tails": tails, "rates": rates,
            "exponent": exponent, "slope": fall, "draws": len(drawn.X), "above": above,
        }  # fmt: skip
    return {"holds": bool(holds), "verdict": "; ".join(verdicts), "features": found}


def _rate(ms: list[int], tail: list[float], count: int) -> float | None:
    """The slope of -log P in m, where P is small but was seen often enough."""
    seen = [(m, -np.log(P)) for m, P in zip(ms, tail, strict=True)
            if P < 0.5 and count // m * P >= SEEN]  # fmt: skip
    x, y = zip(*seen, strict=True) if seen else ((), ())
    return float(np.polyfit(x, y, 1)[0]) if len(seen) > 1 else None


# ---------------------------------------------------------------------- C3


def unbounded_rate(eps: Array, Lambda: float, mean: float) -> Array:
    """-log P / m of P(|k_m - k| >= eps) <= 2 exp(-m eps^2 / (64 L^4 + 16 mu^2 L^2 + 8 L^2 eps)).

    L^2 = |x|^2 sum_l lip(psi_l)^2 and mu >= |E phi|; docs/theory.md has the steps.
    """
    return eps**2 / (64 * Lambda**4 + 16 * mean**2 * Lambda**2 + 8 * Lambda**2 * eps)


def measure_unbounded(size: Any, seed: int, d: int) -> dict[str, Any]:
    """C3: -log P / m against eps, beside its limit for many projections (Cramér)."""
    found: dict[str, Any] = {}
    steps = np.geomspace(0.1, 40, 55)  # of eps, in standard deviations
    for kind in FEATURES:
        drawn = pool(kind, size, seed, d)
        (k,), deviation = population(drawn.psi, drawn.x, drawn.y), float(drawn.X.std())
        _, steepest = bounds(drawn.psi)
        Lambda = float(np.linalg.norm(steepest)) * drawn.norm
        mean = max(float(np.linalg.norm(WEIGHTS @ drawn.psi(r * NODES))) for r in
                   map(np.linalg.norm, (drawn.x, drawn.y)))  # fmt: skip
        eps, measured = steps * deviation, {}
        for m in size.m:
            errors = np.sort(drawn.errors(m, k))
            P = 1 - np.searchsorted(errors, eps) / len(errors)
            kept = (P * len(errors) >= SEEN) & (P < 0.5)
            measured[str(m)] = [
                (s, -np.log(p) / m) for s, p in zip(steps[kept], P[kept], strict=True)
            ]
        limit = cramer(drawn, k, eps)
        kept = (limit > 1e-4) & (limit < 12)  # beyond, the nodes do not reach
        found[kind] = {
            "k": float(k), "deviation": deviation, "Lambda": Lambda, "mean": mean,
            "measured": measured, "eps": steps[kept].tolist(), "limit": limit[kept].tolist(),
            "exponents": np.gradient(np.log(limit[kept]), np.log(eps[kept])).tolist(),
            "bound": unbounded_rate(eps[kept], Lambda, mean).tolist(),
            "above": all(np.exp(-float(m) * y) <= 2 * np.exp(-float(m) * unbounded_rate(
                s * deviation, Lambda, mean)) for m, points in measured.items() for s, y in points),
        }  # fmt: skip
    ends = {kind: numbers["exponents"][-2] for kind, numbers in found.items()}
    starts = {kind: numbers["exponents"][1] for kind, numbers in found.items()}
    above = all(numbers["above"] for numbers in found.values())
    return {
        "holds": above and ends["relu psi"] < 1.3 < 1.7 < starts["relu psi"] and ends["rff"] > 1.7,
        "verdict": f"relu psi: the exponent of ε falls from {starts['relu psi']:.2f} to "
        f"{ends['relu psi']:.2f}; rff, bounded: it rises from {starts['rff']:.2f} to "
        f"{ends['rff']:.2f}; the bound is {'above' if above else 'NOT above'} every tail",
        "features": found,
    }


def cramer(drawn: Pool, k: float, eps: Array) -> Array:
    """lim -log P(|k_m - k| >= eps) / m: the Legendre transform of log E e^(t (X - k)), whose two
    dimensions are summed at nodes."""
    z, weights = NODES[::10], WEIGHTS[::10] / WEIGHTS[::10].sum()
    a, b, cosine = (float(v[0]) for v in kernels.geometry(drawn.x, drawn.y))
    psi = kernels.tabulated(drawn.psi, 12 * max(a, b))
    second = psi(b * (cosine * z[:, None] + np.sqrt(1 - cosine**2) * z))  # (n, n, L)
    X = (psi(a * z)[:, None] * second).sum(2) - k
    logs = np.log(weights)[:, None] + np.log(weights)
    ts = np.geomspace(0.05, 60, 160) / drawn.X.std()
    rates = []
    for side in (X, -X):
        moments = [np.logaddexp.reduce(t * side + logs, axis=None) for t in ts]
        rates.append((ts * eps[:, None] - np.array(moments)).max(1))
    return np.minimum(*rates)
