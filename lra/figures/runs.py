"""Figures of one trained run: LUNA's learned channels psi_l(u), over the histogram of the u they
are given (of a converted model, too); and its attention on one example (of a linear method, what it
implies), relative to uniform attention and on one scale, so that figures can be compared."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lra.base.config import Pooling
from lra.base.errors import UserError
from lra.figures.style import CHANNELS, DASHES, PAGE, at_ends, save_figure, ticked
from lra.looks import in_words, look_of
from lra.results.trained import Trained, load_trained, watching
from lra.settings.presets import AROUND, usual_options
from luna.base import Attention
from luna.feature_maps.learned import LearnedFeatures

WRAP = 64  # tokens per line
SPELT = 32  # lines that are drawn with their characters
SCALE = (0.1, 10.0)  # times uniform attention
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


def draw_channels(arguments: Namespace) -> list[Path]:
    """Draw the channels of a run, or of a converted model on the lines of a file of texts."""
    from lra.figures.students import model_folder, open_students, text_batches

    folder = arguments.folder
    if (model_folder(folder) / "config.json").is_file():
        from luna.convert.running import forward

        (student,) = open_students([folder])
        options = in_words(student.block["options"])
        title = f"{type(student.model).__name__}, {student.label}, {options}\n{student.made}"
        inputs = text_batches(student, arguments.texts)
        layers = observe(student.model, lambda: [forward(student.model, batch) for batch in inputs])
    else:
        run = load_trained(folder, data_dir=arguments.data_dir)
        title, layers = title_of(run), of_run(run)
    name = "-".join(folder.resolve().parts[-3:])
    return draw_layers(layers, title, arguments.out / f"channels-{name}")


def of_run(trained: Trained) -> list[LayerChannels]:
    """psi_l of every layer of a run, over the u of queries and keys of dev examples."""
    batches = islice(trained.batches("val", BATCH), BATCHES)
    return observe(trained.network, lambda: [trained.network(b.ids, b.mask) for b in batches])


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


def draw_layers(layers: list[LayerChannels], title: str, stem: Path) -> list[Path]:
    """A panel per layer, all on one scale, with the histogram of u below it."""
    columns = min(3, len(layers)) if len(layers) > 2 or layers[0].psi.shape[-1] == 1 else 1
    rows = math.ceil(len(layers) / columns)
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
            under.hist(
                layer.u,
                BINS,
                range=(layer.grid[0], layer.grid[-1]),
                color="0.75",
                weights=np.full(len(layer.u), 100 / len(layer.u)),
                histtype="stepfilled",
            )
            _lines(axes, layer)
        for layer, axes in zip(layers, above, strict=False):  # when all limits are known
            ends = [
                (_psi(c), layer.grid[-1], psi[-1].mean(), CHANNELS[c % len(CHANNELS)])
                for c, psi in enumerate(layer.psi.T)
                if psi.any()
            ]
            at_ends(axes, ends if layer.psi.shape[-1] > 1 else [], gap=0.09)

    return save_figure(stem, fill, title, (2.6 if columns == 1 else 2.2) * rows + 0.6)


def _lines(axes: Any, layer: LayerChannels) -> None:
    """One line per channel and group of heads; those that are 0 are only named."""
    zeros = [_psi(c) for c, psi in enumerate(layer.psi.T) if not psi.any()]
    axes.set_title(layer.name + (f"; {', '.join(zeros)} = 0" if zeros else ""))
    for channel, psi in enumerate(layer.psi.T):  # (points, groups)
        if psi.any():
            colour, dashes = CHANNELS[channel % len(CHANNELS)], DASHES[channel % len(DASHES)]
            axes.plot(layer.grid, psi, color=colour, ls=dashes, lw=1.6 if len(psi.T) == 1 else 1)
    axes.grid()
    axes.margins(x=0)
    if layer.exponential:
        axes.set_yscale("log")
        axes.set_ylim(bottom=max(LEAST, layer.psi.min()))
        ticked(axes.yaxis)


def _psi(channel: int) -> str:
    return "ψ" + str(channel + 1).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


# ---------------------------------------------------------------------- attention


class AttentionRow(NamedTuple):
    """Attention to the real tokens of one example, of one query or a mean over all."""

    ids: np.ndarray  # (n,) real tokens, or (n, stack)
    rows: np.ndarray  # (layers, H, n)
    query: str  # whose row it is, in words


def draw_maps(arguments: Namespace) -> list[Path]:
    run = load_trained(arguments.folder, data_dir=arguments.data_dir)
    maps, example = attention_row(run, arguments.example), f"example {arguments.example}"
    title = f"{title_of(run)}\ntest {example}, {maps.query}"
    name = "-".join(["maps", *arguments.folder.resolve().parts[-3:], *example.split()])
    return draw_rows(run, maps, title, arguments.out / name)


def title_of(trained: Trained) -> str:
    """Task, attention with the options that differ from `attention=<name>`, seed, checkpoint; in a
    second line the conditions."""
    run, protocol, task = trained.run, trained.run.protocol, trained.task.name
    method, recipe = run.attention["name"], protocol.recipe
    usual = AROUND | {"name": method} | usual_options(method, task, protocol.name)
    differ = {k: v for k, v in run.attention.items() if v != usual.get(k)}
    attention = look_of(method, differ).name
    return (
        f"{task}, {attention}, seed {run.seed}, {trained.record['select']} checkpoint\n"
        f"protocol {protocol.name} v{protocol.version}, model {run.model.name}, "
        f"{recipe.steps:,} steps of {recipe.batch}; data: {trained.prepared.facts['provenance']}"
    )


def attention_row(trained: Trained, example: int) -> AttentionRow:
    """The row of CLS if the model pools by it, else the mean over queries. Of a pair of texts, the
    first one is shown."""
    part = trained.prepared.split("test")
    if not 0 <= example < len(part):
        raise UserError(f"there is no test example {example}: choose from 0 to {len(part) - 1}")
    index = np.array([example])
    stored = part.stored(part.rows(index).ravel())
    pairs = zip(stored, part.lengths(index).ravel(), strict=True)
    texts = [ids[:n] for ids, n in pairs]
    A, ids, real = trained.attention_maps(texts if trained.task.dual else texts[0])
    if trained.run.protocol.style.pooling is Pooling.cls:
        rows, query = A[:, :, 0, 1:][..., real], "row of CLS"
    else:
        rows, query = A[:, :, real][..., real].mean(2), "mean over queries"
    return AttentionRow(ids[real].numpy(), rows.numpy(), query)


def draw_rows(trained: Trained, maps: AttentionRow, title: str, stem: Path) -> list[Path]:
    """A panel per layer and head: over pixels, or over the lines of a sequence."""
    from matplotlib.colors import LogNorm

    n_layers, n_heads, n = maps.rows.shape
    grid, lines = trained.task.grid, math.ceil(n / WRAP)
    words = [] if grid else [trained.task.decode(maps.ids[i : i + 1]) for i in range(n)]
    columns = n_heads + (grid is not None)
    width = min(3.0, 6.4 / columns)  # inches of a panel
    height = width if grid else 0.3 + 0.14 * lines

    def fill(figure: Any) -> None:
        panels = figure.subplots(n_layers, columns, squeeze=False)
        for axes in panels.flat:
            axes.spines[:].set_visible(False)
            axes.set(xticks=[], yticks=[])
        for i, h in np.ndindex(n_layers, n_heads):
            axes, shares = panels[i, h], maps.rows[i, h] * n
            picture = np.full(grid or (lines, min(n, WRAP)), np.nan)
            picture.flat[:n] = np.clip(shares, 1e-9, None)
            image = axes.imshow(
                picture, cmap="PuOr_r", norm=LogNorm(*SCALE), aspect="equal" if grid else "auto"
            )
            head = f"layer {i}, head {h}"
            axes.set_title(f"{head}: {shares.min():.3g} to {shares.max():.3g}")
            if not grid:
                starts = range(0, lines, max(1, lines // 8))
                axes.set_yticks(starts, [f"{line * WRAP:,}" for line in starts])
            spelt = lines <= SPELT and 2 * sum(len(word) == 1 for word in words) > n
            # a dot for bytes that are not a character
            for at, word in enumerate(words if spelt else []):
                axes.text(
                    at % WRAP,
                    at // WRAP,
                    word if len(word) == 1 else "·",
                    ha="center",
                    va="center",
                    fontsize=6,
                    family="monospace",
                )
        if grid:
            panels[0, -1].imshow(maps.ids.reshape(grid), cmap="gray")
            panels[0, -1].set_title("input")
        figure.colorbar(
            image,
            ax=list(panels.flat),
            extend="both",
            format="{x:g}",
            shrink=0.8,
            label="attention × n (1: uniform)",
        )

    size = PAGE._replace(inches=max(5.0, columns * width + 1))
    return save_figure(stem, fill, title, max(2.7, (height + 0.35) * n_layers + 0.9), size)
