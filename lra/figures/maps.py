"""Rows of a method's implied attention matrix on one example, layer by layer and head by head."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lra.config import Pooling, UserError
from lra.data.loader import Loader
from lra.figures.trained import Trained
from lra.report.figures import save_figure
from luna.base import Attention


@dataclasses.dataclass(frozen=True)
class Maps:
    """Rows of the implied attention matrix on one example."""

    ids: np.ndarray  # (n,) real tokens
    rows: np.ndarray  # (layers, H, n)
    query: str  # which row it is


def attention_maps(trained: Trained, example: int, *, split: str = "test") -> Maps:
    """Of every layer and head: the CLS token's row where the model pools by it, else the mean over
    the real queries. Of a pair, the first text's."""
    part = trained.prepared.split(split)
    if not 0 <= example < len(part):
        raise UserError(f"{split} has examples 0 to {len(part) - 1}, not {example}")
    batch = Loader(part, 1, rules=trained.protocol.data).batch(np.array([example]))
    layers = [m for m in trained.network.modules() if isinstance(m, Attention)]
    lacking = [m.name for m in layers if not m.has_matrix]
    if lacking:
        raise UserError(f"attention '{lacking[0]}' has no attention matrix to draw")
    matrices: list[Tensor] = []

    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        q, k, _, mask, x = inputs
        matrices.append(module.matrix(q, k, mask, x)[0])  # type: ignore[operator]

    with ExitStack() as stack, torch.no_grad():
        for layer in layers:
            stack.callback(layer.register_forward_hook(hook).remove)
        trained.network(batch.ids, batch.mask)
    A = torch.stack(matrices)  # (layers, H, n, n)
    ids = batch.ids[0, 0] if trained.task.dual else batch.ids[0]
    mask = (
        batch.mask
        if batch.mask is None
        else batch.mask[0, 0]
        if trained.task.dual
        else batch.mask[0]
    )
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    if trained.protocol.style.pooling is Pooling.cls:
        return Maps(ids[real].numpy(), A[:, :, 0, 1:][:, :, real].numpy(), "row of CLS")
    rows = A[:, :, real][..., real].mean(2)
    return Maps(ids[real].numpy(), rows.numpy(), "mean over queries")


def draw_maps(trained: Trained, maps: Maps, title: str, stem: Path) -> list[Path]:
    """Over pixels where the task has a grid, over characters or tokens elsewhere."""
    grid = trained.task.grid
    n_layers, n_heads, n = maps.rows.shape

    def pixels(figure: Any) -> None:
        assert grid is not None
        panels = figure.subplots(n_layers, n_heads + 1, squeeze=False)
        for i, row in enumerate(panels):
            row[0].imshow(maps.ids.reshape(grid), cmap="gray")
            row[0].set_ylabel(f"layer {i}")
            for h, axes in enumerate(row[1:]):
                axes.imshow(maps.rows[i, h].reshape(grid), cmap="magma")
                axes.set_title(f"head {h}", fontsize=8)
            for axes in row:
                axes.set(xticks=[], yticks=[])
        figure.suptitle(f"{title}; {maps.query}", fontsize=9)

    def sequence(figure: Any) -> None:
        panels = figure.subplots(n_layers, 1, squeeze=False, sharex=True)[:, 0]
        words = [trained.task.decode(maps.ids[i : i + 1]) for i in range(n)] if n <= 80 else []
        for i, axes in enumerate(panels):
            for h in range(n_heads):
                axes.step(range(n), maps.rows[i, h], where="mid", lw=1, label=f"head {h}")
            axes.set_ylabel(f"layer {i}")
            axes.set_ylim(bottom=min(0.0, float(maps.rows[i].min())))
        if words:
            panels[-1].set_xticks(range(n), words, fontsize=7, rotation=90, family="monospace")
        panels[-1].set_xlabel("position" if not words else "")
        panels[0].legend(fontsize=7)
        figure.suptitle(f"{title}; {maps.query}", fontsize=9)

    if grid is not None:
        return save_figure(stem, pixels, size=(2.1 * (n_heads + 1), 2.2 * n_layers + 0.5))
    return save_figure(stem, sequence, size=(9, 1.8 * n_layers + 0.7))
