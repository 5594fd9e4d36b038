"""Is it Hydra's state that does not recall, or that a row reads with its neighbour's query?

Writes results/mixers/hydra_shift.csv: runs of recall with Hydra as it is, with a copy whose outputs
do not move on by one token, so that a row reads with its own query, and with a short convolution,
which brings a token into the queries of its neighbours. The copy is no method of the project. Lines
that are there are not measured again.
"""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
from torch import Tensor

import lra
from luna.attention import hydra

RESULTS = Path("results/mixers/hydra_shift.csv")
BY = ["copy", "pairs", "layers", "rate", "seed"]
RUNS = [
    *(("unshifted", pairs, 1, 0.003, seed) for pairs in (16, 64) for seed in (1, 2)),
    *(("as it is", pairs, 1, 0.003, seed) for pairs in (16, 64) for seed in (1, 2)),
    *(("unshifted", 64, 1, rate, 1) for rate in (0.001, 0.01)),
    ("unshifted", 128, 1, 0.003, 1),
    *(("as it is", pairs, 2, 0.003, 1) for pairs in (16, 64)),
    *(("short convolution", 16, 1, rate, 1) for rate in (0.001, 0.003)),
]


def unmoved(t: Tensor, *_: Any) -> Tensor:
    return t


def score_of(copy: str, pairs: int, layers: int, rate: float, seed: int) -> float:
    words = [
        "experiment=recall",
        "attention=hydra",
        "attention.short_conv=4" if copy == "short convolution" else "",
        f"task.pairs={pairs}",
        f"model.n_layers={layers}",
        f"protocol.recipe.lr={rate:g}",
        f"seed={seed}",
        "trainer=cpu trainer.threads=1 trainer.progress=off",
    ]
    changed = patch.object(hydra, "of_neighbour", unmoved) if copy == "unshifted" else nullcontext()
    with tempfile.TemporaryDirectory() as runs, changed:
        return lra.train(lra.compose([*" ".join(words).split(), f"runs_dir={runs}"])).score


def main() -> None:
    lines = pd.read_csv(RESULTS) if RESULTS.exists() else pd.DataFrame(columns=[*BY, "score"])
    RESULTS.parent.mkdir(exist_ok=True)
    known = {*lines[BY].itertuples(index=False, name=None)}
    for run in [run for run in RUNS if run not in known]:
        score = score_of(*run)
        print(*run, f"{score:.2f} %", flush=True)
        lines.loc[len(lines)] = [*run, round(score, 2)]
        lines.to_csv(RESULTS, index=False)


if __name__ == "__main__":
    main()
