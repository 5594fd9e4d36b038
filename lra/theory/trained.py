"""What training does to the kernels of the theory: spectrum, and the error of the projections."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import lra
from lra import model
from lra.theory.kernels import Array
from lra.theory.spectra import TOLERANCE
from lra.training.trained import Trained, watching
from luna.attention.performer import Performer
from luna.base import Attention

FRESH = 1000  # seeds from here on are of no run


def measure(runs: Sequence[Path], data_dir: Path, draws: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    verdicts, holds = [], True
    for folder in runs:
        trained = lra.load(folder, data_dir=data_dir)
        name = trained.run.attention["name"]
        if name not in ("luna", "performer"):
            raise lra.UserError(f"{folder} trained {name}: the theory is about luna and performer")
        torch.manual_seed(trained.run.seed)
        run = trained.run  # the same seed gives the weights that its training began with
        start = model.build(trained.task, run.attention, run.model, run.protocol, seed=run.seed)
        states = {"start": start.eval(), "trained": trained.network}
        numbers = {key: _kernel(trained, network, draws) for key, network in states.items()}
        label = f"{name} on {run.task.name}"
        found[f"{label}, {folder.parent.name} {folder.name}"] = numbers
        holds &= all(state["spectrum"][-1] >= -TOLERANCE for state in numbers.values())
        ranks, errors, typical = (
            [f"{f(state):.3g}" for state in numbers.values()]
            for f in (lambda s: s["rank"], lambda s: s["error"], lambda s: np.median(s["redrawn"]))
        )
        verdicts.append(f"{label}: effective rank {' → '.join(ranks)}, error of its projections "
                        f"{' → '.join(errors)} (fresh ones: {' → '.join(typical)})")  # fmt: skip
    return {"holds": bool(holds), "verdict": "; ".join(verdicts), "runs": found}


def _kernel(trained: Trained, network: Any, draws: int) -> dict[str, Any]:
    """The kernel of the first layer on one test example, in double precision."""
    seen: list[tuple[Attention, Tensor, Tensor]] = []
    layers = [m for m in network.modules() if isinstance(m, Attention)][:1]
    with watching(layers, lambda layer, q, k, *_: seen.append((layer, q, k))):
        batch = next(iter(trained.batches("test", 1)))
        network(batch.ids, batch.mask)
    layer: Any = copy.deepcopy(seen[0][0]).double()
    q, k = seen[0][1].double(), seen[0][2].double()
    with torch.no_grad():
        phi = layer.phi_k(k, None)[0, 0]  # (n, D)
        values = torch.linalg.eigvalsh(phi @ phi.T).flip(0).numpy()
        own, redrawn, kernels = layer.matrix(q, k), [], []
        for seed in range(draws):
            _redraw(layer, torch.Generator().manual_seed(FRESH + seed))
            redrawn.append(layer.matrix(q, k))
            kernels.append(layer.phi_q(q, None) @ layer.phi_k(k, None).mT)
        mean = torch.stack(kernels).mean(0)
        limit = mean / mean.sum(-1, keepdim=True)
        if isinstance(layer, Performer):  # its limit is known
            limit = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)

    def off(A: Tensor) -> float:
        return float((A - limit).norm() / limit.norm())

    return {"spectrum": (values / values[0]).tolist(), "rank": _effective_rank(values),
            "error": off(own), "redrawn": sorted(map(off, redrawn))}  # fmt: skip


def _redraw(layer: Any, generator: torch.Generator) -> None:
    """Fresh projections, of the distribution that training began with; psi and beta stay."""
    if isinstance(layer, Performer):
        layer.redraw(generator)
    else:
        W = layer.map.projections.weight
        W.copy_(torch.randn(W.shape, generator=generator) / W.shape[-1] ** 0.5)


def _effective_rank(values: Array) -> float:
    """exp of the entropy of the eigenvalues as shares of their sum."""
    shares = values[values > 0] / values[values > 0].sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))
