"""LUNA's learned channels psi_l(u), over the histogram of the u they are given (the paper's channel
figure and its teaser)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lra.base.config import UserError
from lra.figures.draw import panels_for, rows_for, save_figure
from lra.figures.students import Student
from lra.figures.trained import name
from lra.report.styles import LUNA, PALETTE, SOFTMAX
from lra.training.trained import Trained, watching
from luna.base import Attention
from luna.feature_maps.learned import LearnedFeatures

DEAD = "0.6"  # the colour of a channel that is 0 everywhere
COLOURS = (LUNA, *PALETTE[:-1], SOFTMAX)  # without the grey
TAILS = 0.001  # share of u that lies outside a panel, at each end
WIDE = 8  # channels side by side
LEAST = 1e-6  # of an exponential feature that is drawn: less adds nothing to a sum
Layout = Literal["grid", "overlay"]


@dataclasses.dataclass(frozen=True)
class LayerChannels:
    """The channels of a layer: the u of real tokens, and psi_l on a grid of u."""

    name: str
    u: np.ndarray  # (samples,)
    grid: np.ndarray  # (points,)
    psi: np.ndarray  # (groups, points, L)
    exponential: bool = False  # nonneg=exp: drawn on a logarithmic axis


def of_run(trained: Trained, *, examples: int = 64, points: int = 400) -> list[LayerChannels]:
    """psi_l of every layer of a run, over the u of queries and keys of dev examples."""

    def run() -> None:
        left = examples
        for batch in trained.batches("val", min(16, examples)):
            trained.network(batch.ids, batch.mask)
            left -= len(batch.ids)
            if left <= 0:
                break

    return observe(trained.network, run, name(trained), points)


def of_student(
    student: Student, batches: Iterable[Mapping[str, Tensor]], *, points: int = 400
) -> list[LayerChannels]:
    """psi_l of every converted layer, over the u of given texts or images."""
    from luna.convert.batches import forward

    def run() -> None:
        for batch in batches:
            forward(student.model, batch)

    return observe(student.model, run, str(student.folder), points)


def observe(
    network: nn.Module, run: Callable[[], None], name: str, points: int
) -> list[LayerChannels]:
    """psi_l of every learned feature map in `network`, and the u that it sees during `run`."""
    layers = [m for m in network.modules() if isinstance(m, Attention)]
    maps = {m: where for i, layer in enumerate(layers) for m, _, where in _learned(layer, i)}
    if not maps:
        raise UserError(
            f"{name} has no learned channels: choose a run or model of luna with kernel=learned"
        )
    seen: dict[nn.Module, list[Tensor]] = {layers_of_name: [] for layers_of_name in maps}

    def watch(layer: Attention, q: Tensor, k: Tensor, mask: Tensor | None, _: Any) -> None:
        for layers_of_name, parts, _where in _learned(layer, 0):
            for part in parts:
                x = {"queries": q, "keys": k}[part]
                u = layers_of_name.projections(x.float()).transpose(1, 2)  # (B, n, H, M)
                seen[layers_of_name].append((u if mask is None else u[mask]).flatten())

    with watching(layers, watch):
        run()
    return [_on_grid(m, where, torch.cat(seen[m]).numpy(), points) for m, where in maps.items()]


def _learned(
    layer: Attention, number: int
) -> Iterator[tuple[LearnedFeatures, tuple[str, ...], str]]:
    """The learned feature maps of a layer, what each is applied to, and its name: one map for
    queries and keys, or one each."""
    features, keys = getattr(layer, "map", None), getattr(layer, "map_k", None)
    if isinstance(features, LearnedFeatures):
        if keys is None:
            yield features, ("queries", "keys"), f"layer {number}"
        else:
            yield features, ("queries",), f"layer {number}, queries"
    if isinstance(keys, LearnedFeatures):
        yield keys, ("keys",), f"layer {number}, keys"


def _on_grid(features: LearnedFeatures, name: str, u: np.ndarray, points: int) -> LayerChannels:
    low, high = np.quantile(u, [TAILS, 1 - TAILS]).tolist()
    grid = torch.linspace(low, high, points)
    groups = len(features.channels.g)
    with torch.no_grad():
        psi = features.channels(grid.expand(1, groups, points)[..., None])  # (1, G, points, 1, L)
    exponential = features.channels.nonneg == "exp"
    return LayerChannels(name, u, grid.numpy(), psi[0, :, :, 0].numpy(), exponential)


def draw_channels(
    layers: list[LayerChannels], title: str, stem: Path, *, layout: Layout = "grid"
) -> list[Path]:
    """The paper's channel figure: one row per layer and one panel per channel. The
    `overlay` (its teaser), and a figure of a single channel, has one panel per layer."""
    n_channels = layers[0].psi.shape[-1]
    if layout == "grid" and n_channels > 1:
        lines, columns = _lines(n_channels)
        size = (max(6.0, 1.45 * columns + 1), 1.6 * lines * len(layers) + 1)
        return save_figure(stem, lambda f: grid(f, layers), size=size, title=title)
    columns = 1 if len(layers) < 3 else min(3, len(layers))
    width = 5.2 if columns == 1 else 3.4 if n_channels > 1 else 2.7
    size = (width * columns + 0.8, 2.2 * rows_for(len(layers), columns) + 0.8)
    return save_figure(stem, lambda f: overlay(f, layers, columns), size=size, title=title)


def grid(figure: Any, layers: list[LayerChannels]) -> None:
    n_channels = layers[0].psi.shape[-1]
    lines, columns = _lines(n_channels)
    parts = np.ravel(figure.subfigures(len(layers), 1, squeeze=False))
    for part, layer in zip(parts, layers, strict=True):
        panels = part.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
        for channel, axes in enumerate(panels.flat):
            if channel >= n_channels:
                axes.axis("off")
                continue
            _panel(axes, layer, [channel])
            axes.tick_params(labelbottom=channel + columns >= n_channels)  # nothing below it
            if lines > 1 or layer is layers[0]:
                axes.set_title(_psi(channel))
        for row in panels:
            row[0].set_ylabel(f"{layer.name}:  " + r"$\psi_\ell(u)$")
    _name_abscissa(figure, layers)


def _lines(n_channels: int) -> tuple[int, int]:
    """How many lines of panels a layer takes, and how many panels are in each."""
    lines = rows_for(n_channels, WIDE)
    return lines, rows_for(n_channels, lines)


def overlay(figure: Any, layers: list[LayerChannels], columns: int) -> None:
    """Every panel has a legend, because a channel may be dead in one layer and not in the next."""
    n_channels = layers[0].psi.shape[-1]
    panels = panels_for(figure, len(layers), columns, sharey="row")
    for axes, layer in zip(panels.flat, layers, strict=False):
        _panel(axes, layer, range(n_channels))
        axes.set_title(layer.name, fontsize=9)
        if n_channels > 1 or not layer.psi.any():
            axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)
    for row in panels:
        row[0].set_ylabel(r"$\psi_\ell(u)$" if n_channels > 1 else r"$\psi(u)$")
    _name_abscissa(figure, layers)


def _name_abscissa(figure: Any, layers: list[LayerChannels]) -> None:
    heads = "; one line per head" if len(layers[0].psi) > 1 else ""
    figure.supxlabel(f"u of queries and keys; grey: its histogram{heads}", fontsize=9)


def _panel(axes: Any, layer: LayerChannels, shown: Iterable[int]) -> None:
    """Channels over the histogram; one line per group of heads that shares its functions."""
    _histogram(axes, layer)
    width = 1.6 if len(layer.psi) == 1 else 1.0
    for channel in shown:
        psi = layer.psi[:, :, channel]
        dead = not psi.any()
        style = {
            "color": DEAD if dead else COLOURS[channel % len(COLOURS)],
            "linestyle": "-" if channel < len(COLOURS) else "--",
            "zorder": 1.5 if dead else 2,  # behind channels that are nearly 0
        }
        label = _psi(channel) + (" = 0" if dead else "")
        for group, line in enumerate(psi):
            axes.plot(layer.grid, line, lw=width, label="_" if group else label, **style)
    if layer.exponential:
        axes.set_yscale("log")
        axes.set_ylim(bottom=max(LEAST, layer.psi.min()))
    elif not layer.psi.any():
        axes.set_ylim(-0.05, 1)


def _psi(channel: int) -> str:
    return rf"$\psi_{{{channel + 1}}}$"


def _histogram(axes: Any, layer: LayerChannels) -> None:
    behind = axes.twinx()
    ends = (layer.grid[0], layer.grid[-1])
    behind.hist(layer.u, bins=60, range=ends, color="0.87", histtype="stepfilled")
    behind.set_yticks([])
    behind.spines[:].set_visible(False)
    behind.set_ylim(0, behind.get_ylim()[1] * 1.1)
    axes.set_zorder(behind.get_zorder() + 1)
    axes.patch.set_visible(False)
