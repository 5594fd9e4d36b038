"""C4 and C5: what scalar functions of some width can represent, and which labels they can fit."""

import kernels
import matplotlib.pyplot as plt
import numpy as np
import torch
from kernels import NODES, RADIUS, SEED, WEIGHTS

from luna.kernels.scalar_mlp import ACTIVATIONS

OPTIONS = {"L": 2, "nonneg": False, "projections": "gaussian"}  # of the maps of C4
SIZES = 2 ** np.arange(5, 15)  # N of C5


def width(widths=(2, 4, 8, 16, 32, 64), ms=(16, 64, 256, 1024, 4096), fits=5, steps=100, pairs=200):
    """C4: sup |k - k_NN| over pairs for psi of some width fitted to (cos, sin), whose kernel is
    Gaussian, with h = e^(|x|^2 / 2) softmax's; and sup |k - k_NN,m| of m random projections."""
    rng, u = np.random.default_rng(SEED), RADIUS * NODES
    x, y = kernels.ball(rng, pairs), kernels.ball(rng, pairs)
    exact = np.exp(-((x - y) ** 2).sum(1) / 2)
    envelope = np.exp(((x**2).sum(1) + (y**2).sum(1)) / 2)

    def sampled(psi, hidden, m, seed):
        method = kernels.build(seed, M=m, hidden=hidden, like=psi, **OPTIONS)
        return np.abs(kernels.terms(method, x, y).mean(1) - exact).max()

    figure, (one, two, last) = plt.subplots(1, 3, figsize=(11, 3.8))
    errors, surface = {}, []
    for activation in ("relu", "tanh"):
        methods = [[fitted(w, activation, SEED + i, steps) for i in range(fits)] for w in widths]
        k = np.array([[kernels.population(psi, x, y) for psi in row] for row in methods])
        off = np.array([[kernels.psi_of(psi, u) for psi in row] for row in methods])
        off -= np.stack([np.cos(u), np.sin(u)], axis=-1)
        errors[activation] = {
            "psi": (WEIGHTS[:, None] * off**2).sum((2, 3)) ** 0.5,
            "gaussian": np.abs(k - exact).max(-1),
            "softmax": np.abs(envelope * (k - exact)).max(-1),
        }
        for name, values in errors[activation].items():
            axes, medians = one if name == "psi" else two, np.median(values, axis=1)
            fall = kernels.slope(widths[1:], medians[1:])
            axes.plot(widths, medians, "o-", label=f"{activation}, {name}: width^{fall:.1f}")
        if activation == "relu":  # with the first psi of every width
            surface = [
                [np.median([sampled(psi, w, m, SEED + i) for i in range(2)]) for m in ms]
                for w, (psi, *_) in zip(widths, methods, strict=True)
            ]
    last.plot(ms, np.transpose(surface), ".-", label=[f"width {w}" for w in widths])
    one.set(title="RMS of ψ − (cos, sin)", xlabel="width")
    two.set(title="sup |k − k$_{NN}$| over pairs", xlabel="width")
    last.set(title="sup |k − k$_{NN,m}$|, relu, Gaussian", xlabel="m")
    for axes in figure.axes:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    return {"widths": widths, "m": ms, "errors": errors, "surface": surface}, figure


def fitted(width, activation, seed, steps):
    """psi fitted to (cos, sin) in the mean square for u ~ N(0, RADIUS^2): knots at random, one per
    quantile, outer weights by least squares, then all by L-BFGS."""
    method = kernels.build(seed, M=1, hidden=width, activation=activation, **OPTIONS)
    channels = method.map.channels
    u = torch.as_tensor(RADIUS * NODES[::2])
    weights = torch.as_tensor(WEIGHTS[::2] * 2).sqrt()[:, None]
    target = torch.stack([u.cos(), u.sin()], -1)
    jitter = torch.rand(channels.f.shape, generator=torch.Generator().manual_seed(seed))
    quantiles = ((torch.arange(width) + jitter) / width).clamp(1e-3, 1 - 1e-3)
    knots = 1.5 * RADIUS * 2**0.5 * (2 * quantiles - 1).erfinv()
    channels.f.data.copy_(-channels.e * knots)

    @torch.no_grad()
    def solve():
        for c in range(2):
            hidden = ACTIVATIONS[activation](u[:, None] * channels.e[0, c] + channels.f[0, c])
            matrix = torch.cat([hidden, torch.ones_like(u)[:, None]], 1) * weights
            least = torch.linalg.lstsq(matrix, target[:, [c]] * weights, rcond=1e-8, driver="gelsd")
            channels.a[0, c], channels.g[0, c] = least.solution[:-1, 0], least.solution[-1, 0]

    def loss():
        optimiser.zero_grad()
        off = channels(u[None, None, :, None])[0, 0, :, 0] - target
        value = (off * weights).square().sum()
        value.backward()
        return value

    solve()
    limits = {"max_iter": steps, "tolerance_grad": 1e-12, "tolerance_change": 1e-14}
    optimiser = torch.optim.LBFGS(channels.parameters(), line_search_fn="strong_wolfe", **limits)
    optimiser.step(loss)
    solve()
    return method


def rademacher(N=SIZES, learned_N=SIZES[:6], signs=400, fits=3, steps=300, hidden=64):
    """C5: E |sum_i s_i phi(x_i)| / (N kappa) over signs, kappa = max |phi(x_i)|, for a fixed map;
    for the learned family the largest value that training reaches on random signs."""
    rng = np.random.default_rng(SEED)
    x = kernels.ball(rng, max(N))
    phi = kernels.features(kernels.build(SEED, projections="gaussian", psi="frozen"), x)
    phi /= np.linalg.norm(phi, axis=1).max()
    drawn = (rng.choice([-1.0, 1.0], (signs, n)) @ phi[:n] / n for n in N)
    fixed = [np.linalg.norm(rows, axis=1).mean() for rows in drawn]
    learned = [
        [fitted_to_signs(x[:n], SEED + i, steps, hidden) for i in range(fits)] for n in learned_N
    ]
    figure, axes = plt.subplots(figsize=(5.5, 4))
    axes.plot(N, N**-0.5, "k--", label="bound 1 / √N of a fixed map")
    axes.plot(N, fixed, "o-", label=f"fixed map: N$^{{{kernels.slope(N, fixed):.3f}}}$")
    axes.plot(learned_N, np.median(learned, axis=1), "D-", label="map trained on the signs")
    axes.set_xscale("log", base=2)
    axes.set(yscale="log", xlabel="N tokens", ylabel="complexity / (κ Λ$_v$)")
    return {"N": N, "fixed": fixed, "learned_N": learned_N, "learned": learned}, figure


def fitted_to_signs(x, seed, steps, hidden):
    """The largest |mean_i s_i phi(x_i)| / max_i |phi(x_i)| in training all of phi."""
    method = kernels.build(seed, dtype=torch.float32, nonneg=False, hidden=hidden)
    tokens = torch.as_tensor(x, dtype=torch.float32)[None, None]
    signs = torch.as_tensor(np.random.default_rng(seed).choice([-1.0, 1.0], len(x))).float()
    optimiser, best = torch.optim.Adam(method.parameters(), lr=0.01), 0.0
    for _ in range(steps):
        phi = method.phi_q(tokens, None)[0, 0]  # (N, D)
        reached = (signs @ phi).norm() / len(x) / phi.norm(dim=1).max()
        best = max(best, reached.item())
        optimiser.zero_grad()
        (-reached).backward()
        optimiser.step()
    return best


if __name__ == "__main__":
    C4 = {"widths": (2, 4, 8, 16), "ms": (16, 256), "fits": 2, "steps": 60, "pairs": 30}
    C5 = {"N": SIZES[1:8:2], "learned_N": SIZES[:3:2], "signs": 100, "fits": 1, "steps": 30}
    kernels.main(__doc__, {"C4": (width, C4), "C5": (rademacher, C5 | {"hidden": 16})})
