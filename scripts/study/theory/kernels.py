"""C1: every kernel phi(x) . phi(y) is positive semi-definite. Also what the other scripts share.

results/theory.md has the claims, the notation, and the formula by which `population` computes k.
"""

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.special import eval_hermitenorm, factorial

import luna
from lra.figures.style import PALETTE, STYLE, save
from lra.looks import BLACK, LUNA
from luna.attention.luna import FourierMap

SEED, WIDTH, RADIUS = 0, 8, 2.0  # of random numbers; of a token; of the ball of tokens
# Integrals over N(0, 1) by the trapezoidal rule: exact for smooth psi, good where it has kinks.
NODES = np.linspace(-8, 8, 2001)
WEIGHTS = np.exp(-(NODES**2) / 2) / np.exp(-(NODES**2) / 2).sum()
ORDERS = np.arange(128)
HERMITE = eval_hermitenorm(ORDERS[:, None], NODES) / factorial(ORDERS)[:, None] ** 0.5
VARIANTS = {  # every kind of feature map that LUNA's options make, at the same width M L = 64
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
    "two maps: phi_q . phi_k, symmetric part": {"tie_qk": False},  # which are no kernel
}
COLOURS = dict(
    zip(("sigmoid units", "rff", *VARIANTS), (*PALETTE[1:3], LUNA, PALETTE[0]), strict=False)
) | {list(VARIANTS)[-1]: BLACK}
FINDINGS = {  # the title of each figure
    "C1": "Every kernel that LUNA's options make is positive semi-definite",
    "C2": "The error of m bounded features falls as the square root of m",
    "C3": "Unbounded features have heavier tails: their exponent falls from 2 towards 1",
    "C4": "The error of the kernel falls with the width of its functions",
    "C5": "The bound of a fixed map does not hold for a map that is learned",
    "C6": "LUNA's time is linear in the length, softmax's is quadratic",
}
plt.switch_backend("agg")
plt.rcParams |= STYLE | {
    "figure.constrained_layout.use": True,
    "axes.grid": True,
    "legend.fontsize": 7,
    "axes.prop_cycle": plt.cycler(color=(*PALETTE, LUNA, BLACK)),
}


def build(seed, *, dtype=torch.float64, like=None, **options):
    """LUNA with one head, with the scalar functions of another LUNA if given."""
    torch.manual_seed(seed)
    method = luna.build("luna", n_heads=1, head_dim=WIDTH, max_len=1, seed=seed, **options)
    if like is not None:
        method.map.channels.load_state_dict(like.map.channels.state_dict())
    return method.to(dtype).eval()


@torch.no_grad()
def features(method, x, keys=False):
    """phi(x): (n, d) -> (n, D)."""
    dtype = next(iter(method.map.state_dict().values())).dtype
    phi = method.phi_k if keys else method.phi_q
    return phi(torch.as_tensor(x, dtype=dtype)[None, None], None)[0, 0].double().numpy()


def terms(method, x, y):
    """X_1..X_M of pairs x, y (P, d): (P, M). The mean of every m of them is a draw of k_m."""
    products = features(method, x) * features(method, y)  # (P, M L)
    if isinstance(method.map, FourierMap):  # all cosines, then all sines
        return products.reshape(len(x), 2, -1).sum(1) * (products.shape[1] // 2)
    M = method.map.projections.d_out
    return products.reshape(len(x), M, -1).sum(2) * M


@torch.no_grad()
def psi_of(method, u):
    """The scalar functions of a map: (n,) -> (n, L)."""
    if isinstance(method.map, FourierMap):
        u = method.head_dim**-0.25 * u
        return np.stack([np.cos(u), np.sin(u)], -1)
    return method.map.channels(torch.as_tensor(u)[None, None, :, None])[0, 0, :, 0].numpy()


def tabulated(method, reach):
    """psi on [-reach, reach], for arrays of any shape, looked up in a table."""
    grid = np.linspace(-reach, reach, 2**15)
    table = psi_of(method, grid).T
    return lambda u: np.stack([np.interp(u, grid, row) for row in table], -1)


def geometry(x, y):
    """Norms of x and of y, and their cosine, for pairs (P, d)."""
    a, b = np.linalg.norm(x, axis=1), np.linalg.norm(y, axis=1)
    return a, b, np.clip((x * y).sum(1) / (a * b), -1, 1)


def population(method, x, y):
    """k of pairs x, y (P, d): (P,)."""
    a, b, cosine = geometry(x, y)
    psi, weighted = tabulated(method, 8 * max(a.max(), b.max())), HERMITE * WEIGHTS
    at_x, at_y = (
        np.einsum("pzl,nz->pnl", psi(r[:, None] * NODES), weighted, optimize=True) for r in (a, b)
    )
    return ((at_x * at_y).sum(2) * cosine[:, None] ** ORDERS).sum(1)


def ball(rng, n):
    """Points of the uniform distribution on a ball, (n, WIDTH)."""
    x = rng.standard_normal((n, WIDTH))
    return x / np.linalg.norm(x, axis=1, keepdims=True) * RADIUS * rng.random((n, 1)) ** (1 / WIDTH)


def slope(x, y):
    """The exponent of y in x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def positive(draws=10):
    """C1: eigenvalues of the symmetric part of phi_q(x_i) . phi_k(x_j) over the largest."""
    x = np.random.default_rng(SEED).standard_normal((96, WIDTH))
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.4))
    spectra, smallest = {}, {}
    for name, options in VARIANTS.items():
        methods = [build(SEED + i, **options) for i in range(draws)]
        K = np.array([features(method, x) @ features(method, x, keys=True).T for method in methods])
        values = np.linalg.eigvalsh((K + K.mT) / 2)[:, ::-1]
        values /= values[:, :1].copy()
        spectra[name], smallest[name] = values[0], values[:, -1]
        colour = COLOURS.get(name, "0.7")
        left.plot(np.where(values[0] > 1e-16, values[0], np.nan), color=colour)
        right.plot(smallest[name], [name] * draws, "o", color=colour)
    left.axvline(64, color="0.6", linestyle=":")
    left.set(
        yscale="log",
        xlabel="number of the eigenvalue (dotted: M L)",
        ylabel="eigenvalue / largest, down to rounding",
    )
    right.axvspan(-1e-12, 1e-12, color="0.92")
    right.set_xscale("symlog", linthresh=1e-17)
    right.set_xticks([-1, -1e-5, -1e-10, -1e-15, 1e-15])
    right.set(xlabel="smallest / largest (grey: rounding)")
    return {"spectra": spectra, "smallest": smallest}, figure


def main(description, claims):
    """Measure claims, {name: (measure, its quick settings)}; save their figures and numbers."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--full", action="store_true", help="the committed sizes: minutes")
    parser.add_argument("--out", type=Path, default=Path("figures/theory"), help="target folder")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for claim, (measure, quick) in claims.items():
        numbers, figure = measure() if options.full else measure(**quick)
        figure.suptitle(FINDINGS[claim], x=0.01, ha="left", fontsize=10.5)
        for axes in figure.axes:
            if axes.get_legend_handles_labels()[0]:
                axes.legend(framealpha=0.6)
        stem = options.out / claim
        save(figure, stem)
        Path(f"{stem}.json").write_text(json.dumps(numbers, default=np.ndarray.tolist))
        print(f"{stem}.png, numbers in {stem}.json")


if __name__ == "__main__":
    main(__doc__.partition(". ")[0], {"C1": (positive, {"draws": 2})})
