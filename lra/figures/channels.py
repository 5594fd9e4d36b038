"""LUNA's learned channels psi_l(u), over the histogram of the u they are given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lra.base.config import UserError
from lra.figures import trained as words
from lra.figures.draw import WIDTH, rows_for, save_figure
from lra.figures.labels import at_ends
from lra.figures.students import Student
from lra.figures.style import DASHES, LUNA, PALETTE, SOFTMAX
from lra.training.trained import Trained, watching
from luna.base import Attention
from luna.feature_maps.learned import LearnedFeatures

COLOURS = (LUNA, *PALETTE, SOFTMAX)
EXAMPLES, POINTS, BINS = 64, 400, 60  # dev examples of a run; points of a line
TAILS = 0.001  # share of u that lies outside a panel, at each end
LEAST = 1e-6  # of an exponential feature that is drawn: less adds nothing to a sum


@dataclasses.dataclass(frozen=True)
class LayerChannels:
    """The channels of a layer: the u of real tokens, and psi_l on a grid of u."""

    name: str
    u: np.ndarray  # (samples,)
    grid: np.ndarray  # (points,)
    psi: np.ndarray  # (groups, points, L)
    exponential: bool = False  # nonneg=exp: drawn on a logarithmic axis


def of_run(trained: Trained, examples: int = EXAMPLES) -> list[LayerChannels]:
    """psi_l of every layer of a run, over the u of queries and keys of dev examples."""

    def run() -> None:
        size = min(16, examples)
        for _, batch in zip(range(rows_for(examples, size)), trained.batches("val", size)):  # noqa: B905
            trained.network(batch.ids, batch.mask)

    return observe(trained.network, run, words.name(trained))


def of_student(student: Student, batches: Iterable[Mapping[str, Tensor]]) -> list[LayerChannels]:
    """psi_l of every converted layer, over the u of given texts or images."""
    from luna.convert.batches import forward

    def run() -> None:
        for batch in batches:
            forward(student.model, batch)

    return observe(student.model, run, str(student.folder))


def observe(network: nn.Module, run: Callable[[], None], name: str) -> list[LayerChannels]:
    """psi_l of every learned feature map in `network`, and the u that it sees during `run`."""
    layers = [m for m in network.modules() if isinstance(m, Attention)]
    maps = {m: where for i, layer in enumerate(layers) for m, _, where in _learned(layer, i)}
    if not maps:
        raise UserError(
            f"{name} has no learned channels: choose a run or model of luna with kernel=learned"
        )
    seen: dict[nn.Module, list[Tensor]] = {features: [] for features in maps}

    def watch(layer: Attention, q: Tensor, k: Tensor, mask: Tensor | None, _: Any) -> None:
        for features, parts, _where in _learned(layer, 0):
            for x in ({"queries": q, "keys": k}[part] for part in parts):
                u = features.projections(x.float()).transpose(1, 2)  # (B, n, H, M)
                seen[features].append((u if mask is None else u[mask]).flatten())

    with watching(layers, watch):
        run()
    return [_on_grid(m, where, torch.cat(seen[m]).numpy()) for m, where in maps.items()]


def _learned(
    layer: Attention, number: int
) -> Iterator[tuple[LearnedFeatures, tuple[str, ...], str]]:
    """The learned feature maps of a layer, what each is applied to, and its name: one map for
    queries and keys, or one each."""
    features, keys = getattr(layer, "map", None), getattr(layer, "map_k", None)
    both = [(features, ("queries", "keys"), "")]
    apart = [(features, ("queries",), ", queries"), (keys, ("keys",), ", keys")]
    for each, parts, suffix in both if keys is None else apart:
        if isinstance(each, LearnedFeatures):
            yield each, parts, f"layer {number}{suffix}"


def _on_grid(features: LearnedFeatures, name: str, u: np.ndarray) -> LayerChannels:
    grid = torch.linspace(*np.quantile(u, [TAILS, 1 - TAILS]).tolist(), POINTS)
    groups = len(features.channels.g)
    with torch.no_grad():
        psi = features.channels(grid.expand(1, groups, POINTS)[..., None])  # (1, G, points, 1, L)
    exponential = features.channels.nonneg == "exp"
    return LayerChannels(name, u, grid.numpy(), psi[0, :, :, 0].numpy(), exponential)


def draw_channels(layers: list[LayerChannels], title: str, stem: Path) -> list[Path]:
    """A panel per layer, all on one scale, with the histogram of u below it."""
    columns = min(3, len(layers)) if len(layers) > 2 or layers[0].psi.shape[-1] == 1 else 1
    rows = rows_for(len(layers), columns)
    heads = "; a line per head" if len(layers[0].psi) > 1 else ""
    title += f"\nabove: ψ(u){heads}; below: share of the u of queries and keys, %"
    size = (WIDTH, (2.6 if columns == 1 else 2.2) * rows + 0.6)
    return save_figure(stem, lambda f: _fill(f, layers, rows, columns), size=size, title=title)


def _fill(figure: Any, layers: list[LayerChannels], rows: int, columns: int) -> None:
    panels = figure.subplots(2 * rows, columns, squeeze=False, height_ratios=[4, 1] * rows)
    for axes in panels.flat:
        axes.axis("off")
    above, below = panels[::2].ravel(), panels[1::2].ravel()
    for layer, axes, under in zip(layers, above, below):  # noqa: B905
        axes.sharey(above[0])
        axes.axis("on")
        under.axis("on")
        under.sharex(axes)
        axes.tick_params(labelbottom=False)
        share = np.full(len(layer.u), 100 / len(layer.u))
        ends = (layer.grid[0], layer.grid[-1])
        under.hist(layer.u, BINS, ends, weights=share, color="0.75", histtype="stepfilled")
        _panel(axes, layer)
    for axes, layer in zip(above, layers):  # noqa: B905
        _names(axes, layer)


def _panel(axes: Any, layer: LayerChannels) -> None:
    """One line per channel and group of heads; those that are 0 are only named."""
    zero = [c for c in range(layer.psi.shape[-1]) if not layer.psi[:, :, c].any()]
    zeros = f"; {', '.join(map(_psi, zero))} = 0" if zero else ""
    axes.set_title(layer.name + zeros, loc="left")
    for channel, psi in enumerate(np.moveaxis(layer.psi, 2, 0)):
        if channel not in zero:
            colour, dash = COLOURS[channel % len(COLOURS)], DASHES[channel % len(DASHES)]
            width = 1.6 if len(psi) == 1 else 1.0
            axes.plot(layer.grid, psi.T, color=colour, linestyle=dash, lw=width)
    axes.grid()
    axes.margins(x=0)
    if layer.exponential:
        axes.set_yscale("log")
        axes.set_ylim(bottom=max(LEAST, layer.psi.min()))


def _names(axes: Any, layer: LayerChannels) -> None:
    """Name the lines at their ends; a single channel, or one of many heads, needs no name."""
    if len(layer.psi) == 1 and layer.psi.shape[-1] > 1:
        ends = [(_psi(c), layer.grid[-1], psi[-1], COLOURS[c % len(COLOURS)])
                for c, psi in enumerate(layer.psi[0].T) if psi.any()]  # fmt: skip
        at_ends(axes, ends, gap=0.09)


def _psi(channel: int) -> str:
    return "ψ" + str(channel + 1).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))
