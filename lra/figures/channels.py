"""LUNA's learned channels psi_l(u), over the histogram of the u they are given (the paper's channel
figure and its teaser)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lra.config import UserError
from lra.figures.trained import Trained
from lra.report.figures import save_figure
from lra.report.looks import LUNA, PALETTE
from luna.attention.luna import Luna
from luna.feature_maps.learned import LearnedFeatures

COLOURS = (LUNA, *PALETTE)
TAILS = 0.001  # share of u that lies outside a panel, at each end
Layout = Literal["grid", "overlay"]


@dataclasses.dataclass(frozen=True)
class LayerChannels:
    """What a layer's channels saw and are: the u of real tokens, and psi_l on a grid of u."""

    u: np.ndarray  # (samples,)
    grid: np.ndarray  # (points,)
    psi: np.ndarray  # (groups, points, L)


def channels(trained: Trained, *, examples: int = 64, points: int = 400) -> list[LayerChannels]:
    """psi_l of every layer, over the u that queries and keys of dev examples give."""
    maps = [m for m in trained.network.modules() if isinstance(m, LearnedFeatures)]
    if not maps:
        raise UserError(f"{trained.title} has no learned channels; they are luna's kernel=learned")
    seen: list[list[Tensor]] = [[] for _ in maps]

    def watch(index: int) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, Tensor | None]) -> None:
            x, mask = inputs
            u = maps[index].projections(x).transpose(1, 2)  # (B, n, H, M)
            seen[index].append((u if mask is None else u[mask]).flatten())

        return hook

    with ExitStack() as stack, torch.no_grad():
        for module in trained.network.modules():
            if isinstance(module, Luna):
                module.fusible = False  # the fused kernel passes the features by
        for i, found in enumerate(maps):
            stack.callback(found.register_forward_pre_hook(watch(i)).remove)
        left = examples
        for batch in trained.batches("val", min(16, examples)):
            trained.network(batch.ids, batch.mask)
            left -= len(batch.ids)
            if left <= 0:
                break
    return [_on_grid(m, torch.cat(u).numpy(), points) for m, u in zip(maps, seen, strict=True)]


def _on_grid(features: LearnedFeatures, u: np.ndarray, points: int) -> LayerChannels:
    low, high = np.quantile(u, [TAILS, 1 - TAILS]).tolist()
    grid = torch.linspace(low, high, points)
    groups = len(features.channels.g)
    with torch.no_grad():
        psi = features.channels(grid.expand(1, groups, points)[..., None])  # (1, G, points, 1, L)
    return LayerChannels(u, grid.numpy(), psi[0, :, :, 0].numpy())


def draw_channels(
    layers: list[LayerChannels], title: str, stem: Path, *, layout: Layout = "grid"
) -> list[Path]:
    """The paper's channel figure: a row a layer and a panel a channel, over the histogram of u; or,
    as `overlay`, all channels of a layer in one panel (its teaser)."""
    n_channels = layers[0].psi.shape[-1]
    columns = n_channels if layout == "grid" else 1
    if layout == "grid":
        size = (1.45 * columns + 1, 1.6 * len(layers) + 1)
    else:
        size = (6, 2.3 * len(layers) + 0.8)

    def fill(figure: Any) -> None:
        panels = figure.subplots(len(layers), columns, squeeze=False, sharex="row", sharey="row")
        for i, (row, layer) in enumerate(zip(panels, layers, strict=True)):
            for c, axes in enumerate(row):
                _histogram(axes, layer)
                for channel in [c] if layout == "grid" else range(n_channels):
                    _channel(axes, layer, channel)
                if layout == "grid":
                    axes.set_title(rf"$\psi_{{{c + 1}}}$" if i == 0 else "")
            row[0].set_ylabel(f"layer {i}:  " + r"$\psi_\ell(u)$")
        figure.supxlabel("u of queries and keys; grey: its histogram", fontsize=9)
        if layout == "overlay":
            panels[0][0].legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
        figure.suptitle(title, fontsize=9, color="0.3")

    return save_figure(stem, fill, size=size)


def _channel(axes: Any, layer: LayerChannels, channel: int) -> None:
    """A line for each group of heads with functions of its own."""
    psi = layer.psi[:, :, channel]
    dead = not psi.any()
    colour = "0.45" if dead else COLOURS[channel % len(COLOURS)]
    style = "-" if channel < len(COLOURS) else "--"
    for group, line in enumerate(psi):
        label = "_" if group else rf"$\psi_{{{channel + 1}}}$" + (" = 0" if dead else "")
        axes.plot(layer.grid, line, color=colour, linestyle=style, lw=1.6, label=label)


def _histogram(axes: Any, layer: LayerChannels) -> None:
    behind = axes.twinx()
    behind.hist(layer.u, bins=60, range=(layer.grid[0], layer.grid[-1]), color="0.87")
    behind.set_yticks([])
    behind.spines[:].set_visible(False)
    behind.set_ylim(0, behind.get_ylim()[1] * 1.1)
    axes.set_zorder(behind.get_zorder() + 1)
    axes.patch.set_visible(False)
