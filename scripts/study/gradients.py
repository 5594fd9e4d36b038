"""Does the division of kernel attention make gradients large?

Writes results/normalise/gradients.csv and its figure: runs of recall (64 pairs, seed 1), and at
each step the largest gradient that the features of a query get through what divides their sums.
Its size depends on the scale of the features, which `sum` and `rms` cancel; so it is
|dL_i / dphi_i| |phi_i|, what a relative change of query i's features does to its own loss L_i.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
from torch import Tensor

import lra
from lra.figures.style import save_figure
from lra.looks import BLUE, LUNA, ORANGE, word_of
from luna.linear import KernelAttention

RESULTS = Path("results/normalise/gradients.csv")
FINDING = "Signed outputs have larger gradients if divided than normalised; relu has the largest"
OUTPUTS = {"relu": "true", "exponential": "exp", "signed": "false"}
RUNS = [
    *((3e-3, output, divisor) for output in OUTPUTS for divisor in ("sum", "rms")),
    *((1e-2, "signed", divisor) for divisor in ("sum", "rms")),
]


def largest_gradients(nonneg: str, normalise: str, rate: float) -> tuple[list[float], float]:
    """Train, and return the largest gradient at each step and the test accuracy."""
    steps: list[float] = []
    features = KernelAttention.features

    def watched(self: KernelAttention, q: Tensor, k: Tensor, mask: Any) -> tuple[Tensor, Tensor]:
        phi_q, phi_k = features(self, q, k, mask)
        if phi_q.requires_grad:
            size, queries = phi_q.detach().norm(dim=-1), phi_q.shape[0] * phi_q.shape[2] // 2
            phi_q.register_hook(
                lambda g: steps.append(float((g.norm(dim=-1) * size).max()) * queries)
            )
        return phi_q, phi_k

    words = [
        "experiment=recall",
        "attention=luna",
        "attention.evaluate=piecewise",
        f"attention.nonneg={nonneg}",
        f"attention.normalise={normalise}",
        "task.pairs=64",
        f"protocol.recipe.lr={rate}",
        "trainer=cpu",
        "trainer.threads=1",
        "trainer.progress=off",
    ]
    with tempfile.TemporaryDirectory() as runs, patch.object(KernelAttention, "features", watched):
        run = lra.compose([*words, f"runs_dir={runs}"])
        score = lra.train(run).score
    return steps[-run.protocol.recipe.steps :], score  # before them, its cost was counted


def measure() -> Iterator[pd.DataFrame]:
    for rate, output, normalise in RUNS:
        steps, score = largest_gradients(OUTPUTS[output], normalise, rate)
        print(output, normalise, rate, f"{score:.1f} %", flush=True)
        lines = pd.DataFrame({"step": range(1, len(steps) + 1), "largest": steps})
        yield lines.assign(output=output, normalise=normalise, rate=rate, test=round(score, 2))


def draw(lines: pd.DataFrame) -> None:
    rates = sorted(set(lines["rate"]))
    colours = dict(zip(OUTPUTS, (LUNA, ORANGE, BLUE), strict=True))

    def fill(figure: Any) -> None:
        panels = figure.subplots(1, len(rates), sharey=True)
        for panel, rate in zip(panels, rates, strict=True):
            runs = lines[lines["rate"] == rate].groupby(["output", "normalise"], sort=False)
            for (output, normalise), run in runs:
                panel.plot(
                    run["step"],
                    run["largest"].rolling(10).max(),
                    "-" if normalise == "sum" else "--",
                    color=colours[output],
                    label=f"{output}, {word_of('normalise', normalise)}: {run['test'].iloc[0]:.0f}",
                )
            panel.set(title=f"rate {rate:g}", xlabel="step", yscale="log")
            panel.legend(fontsize=7, frameon=False)
            panel.grid()
        panels[0].set_ylabel("largest gradient of 10 steps")

    title = (
        f"{FINDING}\nRecall of 64 pairs, one seed a line, with its test accuracy in %. Gradient: "
        "what a relative change of a query's features does to its loss."
    )
    save_figure(RESULTS.with_suffix(""), fill, title, 3.8)


if __name__ == "__main__":
    if "--draw" not in sys.argv:
        pd.concat(measure()).to_csv(RESULTS, index=False, float_format="%.4g")
    draw(pd.read_csv(RESULTS))
