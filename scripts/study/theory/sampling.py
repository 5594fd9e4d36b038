"""C2 and C3: how far the kernel k_m of m random projections lies from k, for a pair of tokens."""

import kernels
import matplotlib.pyplot as plt
import numpy as np
import torch
from kernels import NODES, SEED, WEIGHTS
from numpy.linalg import norm

OPTIONS = {
    "relu psi": {"projections": "gaussian"},  # as published: unbounded
    "sigmoid psi": {"projections": "gaussian", "nonneg": False, "activation": "sigmoid"},
    "rff": {"kernel": "rff", "L": 2},
}
LEVELS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5)  # eps of C2, in standard deviations


class Pool:
    """Independent X_i of one pair of tokens and one psi, and the constants of their bounds."""

    def __init__(self, kind, log2_mlp, log2_rff):
        self.x, self.y = kernels.ball(np.random.default_rng(SEED), 2)[:, None]
        self.method = kernels.build(SEED, M=1, **OPTIONS[kind])
        draws, like = (2**log2_rff, None) if kind == "rff" else (2**log2_mlp, self.method)
        batch = {"M": min(draws, 2**18), "dtype": torch.float32, "like": like} | OPTIONS[kind]
        maps = (kernels.build(SEED + 1 + i, **batch) for i in range(draws // batch["M"]))
        self.X = np.concatenate([kernels.terms(many, self.x, self.y)[0] for many in maps])
        u, norms = np.sinh(np.linspace(-10, 10, 20001)), [norm(self.x), norm(self.y)]
        psi = kernels.psi_of(self.method, u)
        steepest = np.abs(np.diff(psi, axis=0) / np.diff(u)[:, None]).max(0)  # sup |psi_l'|
        self.B, self.Lambda = norm(psi, axis=1).max(), norm(steepest) * max(norms)
        means = [WEIGHTS @ kernels.psi_of(self.method, r * NODES) for r in norms]
        self.mean = max(norm(means, axis=1))  # of |E phi|
        self.k, self.deviation = kernels.population(self.method, self.x, self.y)[0], self.X.std()
        self.constants = {key: vars(self)[key] for key in ("k", "B", "Lambda", "mean", "deviation")}

    def tails(self, m, eps):
        """P(|k_m - k| >= eps), whether it was seen often enough, and the root mean square."""
        errors = np.sort(np.abs(self.X[: len(self.X) // m * m].reshape(-1, m).mean(1) - self.k))
        counts = len(errors) - np.searchsorted(errors, eps)
        return counts / len(errors), counts >= 20, np.sqrt(np.mean(errors**2))


def bounded(log2_mlp=22, log2_rff=24, log2_m=12):
    """C2: tails of the error, their rates of falling with m, and its root mean square."""
    numbers, m = {}, 2 ** np.arange(4, log2_m + 1)
    figure, (above, (rates, roots)) = plt.subplots(2, 2, figsize=(9, 7))
    for axes, kind in zip(above, ("sigmoid psi", "rff"), strict=True):
        pool = Pool(kind, log2_mlp, log2_rff)
        # P(|k_m - k| >= eps) <= 2 exp(-c m eps^2), by Gaussian concentration or by Hoeffding
        c = max(1 / (8 * pool.B**2 * pool.Lambda**2), 1 / (2 * pool.B**4))
        eps = pool.deviation * np.array(LEVELS)
        P, often, rmse = map(np.array, zip(*(pool.tails(size, eps) for size in m), strict=True))
        small, falls = often & (P < 0.5), np.full(len(eps), np.nan)
        for i, level in enumerate(LEVELS):
            axes.plot((m * level**2)[often[:, i]], P[often[:, i], i], ".-", label=f"ε = {level} σ")
            if small[:, i].sum() > 1:
                falls[i] = np.polyfit(m[small[:, i]], -np.log(P[small[:, i], i]), 1)[0]
        bound = np.minimum(1, 2 * np.exp(-c * pool.deviation**2 * np.arange(26)))
        axes.plot(bound, "k--", label="bound")
        axes.set(
            yscale="log",
            xlabel="m ε² / σ²",
            ylabel="P(|k$_m$ − k| ≥ ε)",
            ylim=(1e-6, 1.6),
            title=f"{kind}, σ = {pool.deviation:.2g}",
        )
        exponent, fall = kernels.slope(eps[falls > 0], falls[falls > 0]), kernels.slope(m, rmse)
        (line,) = rates.plot(LEVELS, falls, "o", label=f"{kind}: ε$^{{{exponent:.2f}}}$")
        rates.plot(LEVELS, c * eps**2, "--", color=line.get_color(), label=f"{kind}: bound")
        roots.plot(m, rmse, "o-", label=f"{kind}: m$^{{{fall:.3f}}}$")
        roots.plot(m, pool.deviation / m**0.5, "k:")
        numbers[kind] = pool.constants | {
            "m": m,
            "levels": eps,
            "rmse": rmse,
            "tails": P.T,
            "rates": falls,
            "c": c,
            "exponent": exponent,
            "slope": fall,
        }
    rates.set(xscale="log", yscale="log", xlabel="ε / σ", ylabel="slope of −log P in m")
    roots.set_xscale("log", base=2)
    roots.set(yscale="log", xlabel="m", ylabel="RMSE of k$_m$ (dotted: σ / √m)")
    return {"features": numbers}, figure


def unbounded(log2_mlp=21, log2_rff=22):
    """C3: -log P / m against eps, beside its limit for many projections (Cramér)."""
    numbers, steps = {}, np.geomspace(0.1, 40, 55)  # eps, in standard deviations
    figure, (*panels, last) = plt.subplots(1, 4, figsize=(11, 3.6))
    for axes, kind in zip(panels, OPTIONS, strict=True):
        pool, measured = Pool(kind, log2_mlp, log2_rff), {}
        eps = steps * pool.deviation
        for m in (1, 4, 16):
            P, often, _ = pool.tails(m, eps)
            often &= P < 0.5
            measured[str(m)] = np.stack([steps[often], -np.log(P[often]) / m], axis=1)
            axes.plot(*measured[str(m)].T, ".", label=f"m = {m}")
        limit = cramer(pool, eps)
        near = (limit > 1e-4) & (limit < 12)  # beyond, the nodes do not reach
        limit, eps = limit[near], eps[near]
        # The rate for features without a bound; results/theory.md has the steps.
        Lambda, mean = pool.Lambda, pool.mean
        bound = eps**2 / (64 * Lambda**4 + 16 * mean**2 * Lambda**2 + 8 * Lambda**2 * eps)
        exponents = np.gradient(np.log(limit), np.log(eps))
        axes.plot(steps[near], limit, label="limit of large m")
        axes.plot(steps[near], bound, "k--", label="bound")
        axes.set(xscale="log", yscale="log", xlabel="ε / σ", title=kind)
        axes.sharex(panels[0])
        axes.sharey(panels[0])
        last.plot(steps[near], exponents, label=kind)
        numbers[kind] = pool.constants | {
            "measured": measured,
            "eps": steps[near],
            "limit": limit,
            "exponents": exponents,
            "bound": bound,
        }
    panels[0].set_ylabel("−log P(|k$_m$ − k| ≥ ε) / m")
    last.set(xscale="log", xlabel="ε / σ", title="exponent of ε in the limit", ylim=(0.5, 4))
    return {"features": numbers}, figure


def cramer(pool, eps):
    """lim -log P(|k_m - k| >= eps) / m: the Legendre transform of log E e^(t (X - k)), whose two
    dimensions are summed at nodes."""
    z, weights = NODES[::10], WEIGHTS[::10] / WEIGHTS[::10].sum()
    a, b, cosine = (values[0] for values in kernels.geometry(pool.x, pool.y))
    psi = kernels.tabulated(pool.method, 12 * max(a, b))
    second = psi(b * (cosine * z[:, None] + np.sqrt(1 - cosine**2) * z))  # (n, n, L)
    X = (psi(a * z)[:, None] * second).sum(2) - pool.k
    logs, ts = np.log(np.outer(weights, weights)), np.geomspace(0.05, 60, 160) / pool.deviation
    moments = [[np.logaddexp.reduce(t * side + logs, axis=None) for t in ts] for side in (X, -X)]
    return np.min([(ts * eps[:, None] - np.array(rows)).max(1) for rows in moments], axis=0)


if __name__ == "__main__":
    quick = {"log2_mlp": 16, "log2_rff": 18}
    kernels.main(__doc__, {"C2": (bounded, quick | {"log2_m": 8}), "C3": (unbounded, quick)})
