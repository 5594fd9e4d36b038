"""LUNA's learned channels psi_l(u), over the histogram of the u they are given (the paper's channel
figure and its teaser)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lra.config import UserError
from lra.figures.draw import heading, save_figure
from lra.figures.students import Student
from lra.figures.trained import Trained
from lra.report.looks import LUNA, PALETTE, SOFTMAX
from luna.attention.luna import Luna
from luna.base import Attention
from luna.feature_maps.learned import POSITIVE, LearnedFeatures

DEAD = "0.6"
COLOURS = (LUNA, *PALETTE[:-1], SOFTMAX)  # without the grey
TAILS = 0.001  # share of u that lies outside a panel, at each end
DECADES = 1e3
WIDE = 8  # channels side by side
LEAST = 1e-6  # of an exponential feature: less adds nothing to a sum
Layout = Literal["grid", "overlay"]


@dataclasses.dataclass(frozen=True)
class LayerChannels:
    """What a layer's channels saw and are: the u of real tokens, and psi_l on a grid of u."""

    name: str
    u: np.ndarray  # (samples,)
    grid: np.ndarray  # (points,)
    psi: np.ndarray  # (groups, points, L)
    exponential: bool = False  # nonneg=exp: seen on a logarithmic axis only


def channels(trained: Trained, *, examples: int = 64, points: int = 400) -> list[LayerChannels]:
    """psi_l of every layer of a run, over the u that queries and keys of dev examples give."""

    def run() -> None:
        left = examples
        for batch in trained.batches("val", min(16, examples)):
            trained.network(batch.ids, batch.mask)
            left -= len(batch.ids)
            if left <= 0:
                break

    return observe(trained.network, run, trained.name, points)


def of_student(
    student: Student, batches: Iterable[Mapping[str, Tensor]], *, points: int = 400
) -> list[LayerChannels]:
    """The same of a converted model, over the u of texts or images as it sees them itself."""
    from luna.convert.batches import forward

    def run() -> None:
        for batch in batches:
            forward(student.model, batch)

    return observe(student.model, run, str(student.folder), points)


def observe(
    network: nn.Module, run: Callable[[], None], name: str, points: int
) -> list[LayerChannels]:
    """psi_l of every learned feature map in `network`, and what it is given during `run`."""
    layers = [m for m in network.modules() if isinstance(m, Attention)]
    maps = {m: where for i, layer in enumerate(layers) for m, where in _learned(layer, i)}
    if not maps:
        raise UserError(f"{name} has no learned channels; they are luna's kernel=learned")
    seen: dict[nn.Module, list[Tensor]] = {found: [] for found in maps}

    def watch(module: nn.Module, inputs: tuple[Tensor, Tensor | None]) -> None:
        x, mask = inputs
        u = module.projections(x).transpose(1, 2)  # type: ignore[operator]  # (B, n, H, M)
        seen[module].append((u if mask is None else u[mask]).flatten())

    with ExitStack() as stack, torch.no_grad():
        for layer in layers:
            if isinstance(layer, Luna):
                layer.fusible = False  # the fused kernel passes the features by
        for found in maps:
            stack.callback(found.register_forward_pre_hook(watch).remove)
        run()
    return [_on_grid(m, where, torch.cat(seen[m]).numpy(), points) for m, where in maps.items()]


def _learned(layer: Attention, number: int) -> Iterator[tuple[LearnedFeatures, str]]:
    """The learned feature maps of a layer: one for queries and keys, or one each."""
    parts = {part: getattr(layer, part, None) for part in ("map", "map_k")}
    for part, found in parts.items():
        if isinstance(found, LearnedFeatures):
            of = {"map": "queries", "map_k": "keys"}[part]
            yield found, f"layer {number}" + (f", {of}" if parts["map_k"] is not None else "")


def _on_grid(features: LearnedFeatures, name: str, u: np.ndarray, points: int) -> LayerChannels:
    low, high = np.quantile(u, [TAILS, 1 - TAILS]).tolist()
    grid = torch.linspace(low, high, points)
    groups = len(features.channels.g)
    with torch.no_grad():
        psi = features.channels(grid.expand(1, groups, points)[..., None])  # (1, G, points, 1, L)
    exponential = features.channels.positive is POSITIVE["exp"]
    return LayerChannels(name, u, grid.numpy(), psi[0, :, :, 0].numpy(), exponential)


def draw_channels(
    layers: list[LayerChannels], title: str, stem: Path, *, layout: Layout = "grid"
) -> list[Path]:
    """The paper's channel figure: a row a layer and a panel a channel, over the histogram of u; or,
    as `overlay` (its teaser) or where there is one channel, a panel a layer."""
    n_channels = layers[0].psi.shape[-1]
    if layout == "grid" and n_channels > 1:
        lines, columns = _lines(n_channels)
        size = (max(6.0, 1.45 * columns + 1), 1.6 * lines * len(layers) + 1)
        return save_figure(stem, lambda f: grid(f, layers, title), size=size)
    columns = 1 if len(layers) < 3 else min(3, len(layers))
    width = 5.2 if columns == 1 else 3.4 if n_channels > 1 else 2.7
    size = (width * columns + 0.8, 2.2 * -(-len(layers) // columns) + 0.8)
    return save_figure(stem, lambda f: overlay(f, layers, columns, title), size=size)


def grid(figure: Any, layers: list[LayerChannels], title: str) -> None:
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
    _finish(figure, layers, title)


def _lines(n_channels: int) -> tuple[int, int]:
    """Of a layer, and panels in each: as even as can be."""
    lines = -(-n_channels // WIDE)
    return lines, -(-n_channels // lines)


def overlay(figure: Any, layers: list[LayerChannels], columns: int, title: str) -> None:
    """A legend for every panel: a channel may be dead in one layer and not in the next."""
    n_channels = layers[0].psi.shape[-1]
    panels = figure.subplots(-(-len(layers) // columns), columns, squeeze=False, sharey="row")
    for axes in panels.flat[len(layers) :]:
        axes.axis("off")
    for axes, layer in zip(panels.flat, layers, strict=False):
        _panel(axes, layer, range(n_channels))
        axes.set_title(layer.name, fontsize=9)
        if n_channels > 1 or not layer.psi.any():
            axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)
    for row in panels:
        row[0].set_ylabel(r"$\psi_\ell(u)$" if n_channels > 1 else r"$\psi(u)$")
    _finish(figure, layers, title)


def _finish(figure: Any, layers: list[LayerChannels], title: str) -> None:
    each = "; a line for each head" if len(layers[0].psi) > 1 else ""
    figure.supxlabel(f"u of queries and keys; grey: its histogram{each}", fontsize=9)
    heading(figure, title)


def _panel(axes: Any, layer: LayerChannels, shown: Iterable[int]) -> None:
    """Channels over the histogram: a line for each group of heads with functions of its own."""
    _histogram(axes, layer)
    width = 1.6 if len(layer.psi) == 1 else 1.0
    for channel in shown:
        psi = layer.psi[:, :, channel]
        dead = not psi.any()
        look = {
            "color": DEAD if dead else COLOURS[channel % len(COLOURS)],
            "linestyle": "-" if channel < len(COLOURS) else "--",
            "zorder": 1.5 if dead else 2,  # a dead channel never hides one that is nearly 0
        }
        label = _psi(channel) + (" = 0" if dead else "")
        for group, line in enumerate(psi):
            axes.plot(layer.grid, line, lw=width, label="_" if group else label, **look)
    if layer.exponential:
        _logarithmic(axes, max(LEAST, layer.psi.min()))
    elif not layer.psi.any():
        axes.set_ylim(-0.05, 1)


def _logarithmic(axes: Any, bottom: float) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.set_ylim(bottom=bottom)
    if axes.get_ylim()[1] < DECADES * bottom:  # powers of ten alone would leave it bare
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())


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
