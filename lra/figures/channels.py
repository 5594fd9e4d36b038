"""LUNA's learned channels psi_l(u), over the histogram of the u they are given."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lra.base.config import UserError
from lra.figures.draw import WIDTH, finely_ticked, rows_for, save_figure
from lra.figures.labels import at_ends
from lra.figures.maps import title_of
from lra.figures.students import Student, model_folder, open_students, text_batches
from lra.figures.style import DASHES, LUNA, PALETTE, SOFTMAX, in_words
from lra.results.bundle import open_network
from lra.training.trained import Trained, watching
from luna.base import Attention
from luna.feature_maps.learned import LearnedFeatures

COLOURS = (LUNA, *PALETTE, SOFTMAX)
BATCH, BATCHES, POINTS, BINS = 16, 4, 400, 60  # dev examples of a run; of a line, of a histogram
TAILS = 0.001  # share of u that lies outside a panel, at each end
LEAST = 1e-6  # of an exponential feature that is drawn: less adds nothing to a sum


class LayerChannels(NamedTuple):
    """The channels of a layer: the u of real tokens, and psi_l on a grid of u."""

    name: str
    u: np.ndarray  # (samples,)
    grid: np.ndarray  # (points,)
    psi: np.ndarray  # (groups, points, L)
    exponential: bool = False  # nonneg=exp: drawn on a logarithmic axis


def draw(arguments: Namespace) -> list[Path]:
    """Draw the channels of a run, or of a converted model on the lines of a file of texts."""
    folder = arguments.folder
    stem = arguments.out / f"channels-{'-'.join(folder.resolve().parts[-3:])}"
    if not (model_folder(folder) / "config.json").is_file():  # no converted model
        run = open_network(folder, data_dir=arguments.data_dir)
        return draw_channels(of_run(run), title_of(run), stem)
    (student,) = open_students([folder])
    title = f"{type(student.model).__name__}, {student.label}, {in_words(student.block['options'])}"
    layers = of_student(student, text_batches(student, arguments.texts))
    return draw_channels(layers, f"{title}\n{student.made}", stem)


def of_run(trained: Trained) -> list[LayerChannels]:
    """psi_l of every layer of a run, over the u of queries and keys of dev examples."""
    batches = islice(trained.batches("val", BATCH), BATCHES)
    return observe(trained.network, lambda: [trained.network(b.ids, b.mask) for b in batches])


def of_student(student: Student, batches: Iterable[Mapping[str, Tensor]]) -> list[LayerChannels]:
    """psi_l of every converted layer, over the u of these inputs."""
    from luna.convert.batches import forward

    return observe(student.model, lambda: [forward(student.model, batch) for batch in batches])


def observe(network: nn.Module, run: Callable[[], object]) -> list[LayerChannels]:
    """psi_l of every learned feature map in `network`, and the u that it sees during `run`."""
    layers = [m for m in network.modules() if isinstance(m, Attention)]
    seen: dict[tuple[str, LearnedFeatures], list[Tensor]] = {}

    def watch(layer: Attention, q: Tensor, k: Tensor, mask: Tensor | None, _: Any) -> None:
        features, keys = getattr(layer, "map", None), getattr(layer, "map_k", None)
        apart = [(", queries", features, [q]), (", keys", keys, [k])]
        for of, each, inputs in apart if keys is not None else [("", features, [q, k])]:
            if isinstance(each, LearnedFeatures):
                place = seen.setdefault((f"layer {layers.index(layer)}{of}", each), [])
                for x in inputs:
                    u = each.projections(x.float()).transpose(1, 2)  # (B, n, H, M)
                    place.append((u if mask is None else u[mask]).flatten())

    with watching(layers, watch):
        run()
    if not seen:
        raise UserError("no learned channels: choose a run or model of luna with kernel=learned")
    return [_on_grid(name, each, torch.cat(u).numpy()) for (name, each), u in seen.items()]


def _on_grid(name: str, features: LearnedFeatures, u: np.ndarray) -> LayerChannels:
    low, high = np.quantile(u, [TAILS, 1 - TAILS]).tolist()
    grid = torch.linspace(low, high, POINTS)
    groups, exponential = len(features.channels.g), features.channels.nonneg == "exp"
    with torch.no_grad():
        psi = features.channels(grid.expand(1, groups, POINTS)[..., None])  # (1, G, points, 1, L)
    return LayerChannels(name, u, grid.numpy(), psi[0, :, :, 0].numpy(), exponential)


def draw_channels(layers: list[LayerChannels], title: str, stem: Path) -> list[Path]:
    """A panel per layer, all on one scale, with the histogram of u below it."""
    columns = min(3, len(layers)) if len(layers) > 2 or layers[0].psi.shape[-1] == 1 else 1
    rows = rows_for(len(layers), columns)
    heads = "; a line per head" if len(layers[0].psi) > 1 else ""
    title += f"\nabove: ψ(u){heads}; below: share of the u of queries and keys, %"

    def fill(figure: Any) -> None:
        panels = figure.subplots(2 * rows, columns, squeeze=False, height_ratios=[4, 1] * rows)
        above, below = panels[::2].ravel(), panels[1::2].ravel()
        for axes in (*above[len(layers) :], *below[len(layers) :]):
            axes.axis("off")
        for layer, axes, under in zip(layers, above, below, strict=False):
            axes.sharey(above[0])
            under.sharex(axes)
            axes.tick_params(labelbottom=False)
            under.hist(layer.u, BINS, range=(layer.grid[0], layer.grid[-1]), color="0.75",
                       weights=np.full(len(layer.u), 100 / len(layer.u)),
                       histtype="stepfilled")  # fmt: skip
            _lines(axes, layer)
        for layer, axes in zip(layers, above, strict=False):  # when all limits are known
            ends = [(_psi(c), layer.grid[-1], psi[-1].mean(), COLOURS[c % len(COLOURS)])
                    for c, psi in enumerate(layer.psi.T) if psi.any()]  # fmt: skip
            at_ends(axes, ends if layer.psi.shape[-1] > 1 else [], gap=0.09)

    size = (WIDTH, (2.6 if columns == 1 else 2.2) * rows + 0.6)
    return save_figure(stem, fill, size=size, title=title)


def _lines(axes: Any, layer: LayerChannels) -> None:
    """One line per channel and group of heads; those that are 0 are only named."""
    zeros = [_psi(c) for c, psi in enumerate(layer.psi.T) if not psi.any()]
    axes.set_title(layer.name + (f"; {', '.join(zeros)} = 0" if zeros else ""))
    for channel, psi in enumerate(layer.psi.T):  # (points, groups)
        if psi.any():
            colour, dashes = COLOURS[channel % len(COLOURS)], DASHES[channel % len(DASHES)]
            axes.plot(layer.grid, psi, color=colour, ls=dashes, lw=1.6 if len(psi.T) == 1 else 1)
    axes.grid()
    axes.margins(x=0)
    if layer.exponential:
        axes.set_yscale("log")
        axes.set_ylim(bottom=max(LEAST, layer.psi.min()))
        finely_ticked(axes.yaxis)


def _psi(channel: int) -> str:
    return "ψ" + str(channel + 1).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))
