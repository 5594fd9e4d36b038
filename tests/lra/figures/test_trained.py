"""Figures of a trained run: the channels it learned, and the rows of its attention matrix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from lra.cli import main
from lra.compose import Run
from lra.config import UserError
from lra.figures.channels import (
    COLOURS,
    DEAD,
    LayerChannels,
    channels,
    draw_channels,
    grid,
    overlay,
)
from lra.figures.maps import attention_maps, draw_maps
from lra.figures.trained import Trained, restore
from lra.run import train

SHORT = ("protocol.recipe.steps=2", "protocol.evaluation.every=2")


@pytest.fixture
def trained(small: Callable[..., Run], tmp_path: Path, data_dir: Path) -> Callable[..., Trained]:
    """trained("attention=luna", ...): a short run, read back from its folder."""

    def make(*words: str) -> Trained:
        train(small(*SHORT, *words))
        return restore(next(tmp_path.rglob("config.yaml")).parent, data_dir)

    return make


def test_channels_are_those_of_the_checkpoint(trained: Callable[..., Trained], tmp_path: Path):
    run = trained("attention=luna", "attention.L=3", "attention.M=2", "attention.share=head")
    (layer,) = channels(run, examples=8, points=50)
    features = run.network.encoder.blocks[0].attention.attention.map
    assert layer.psi.shape == (features.channels.g.shape[0], 50, 3)
    u = torch.from_numpy(layer.grid[[0, 20, 49]])
    c = features.channels  # psi_l(u) = relu(a_l . relu(e_l u + f_l) + g_l), group 1, channel 2
    hidden = (c.e[1, 2] * u[:, None] + c.f[1, 2]).relu()
    psi = (hidden @ c.a[1, 2] + c.g[1, 2]).relu()
    np.testing.assert_allclose(layer.psi[1, [0, 20, 49], 2], psi.detach(), rtol=1e-4, atol=1e-6)
    pytest.importorskip("matplotlib")
    for layout in ("grid", "overlay"):
        paths = draw_channels([layer], "T", tmp_path / layout, layout=layout)
        assert [p.suffix for p in paths] == [".png", ".svg"]
        assert all(p.stat().st_size > 5000 for p in paths)


def test_a_channel_that_is_dead_in_one_layer_is_drawn_alive_in_the_next():
    figure_type = pytest.importorskip("matplotlib.figure").Figure
    u = np.linspace(-1, 1, 5)
    alive = np.ones((1, 5, 2))
    dead = alive * [0, 1]
    layers = [LayerChannels(f"layer {i}", u, u, psi) for i, psi in enumerate((dead, alive))]
    figure = figure_type()
    overlay(figure, layers, 1, "T")
    first, second = (axes for axes in figure.axes if axes.get_legend())
    named = [[t.get_text() for t in axes.get_legend().get_texts()] for axes in (first, second)]
    assert named == [[r"$\psi_{1}$ = 0", r"$\psi_{2}$"], [r"$\psi_{1}$", r"$\psi_{2}$"]]
    colours = [[line.get_color() for line in axes.lines] for axes in (first, second)]
    assert colours[0][0] == DEAD
    assert DEAD not in [*COLOURS, *colours[1]]
    assert colours[0][1] == colours[1][1]


@pytest.mark.parametrize(("n_channels", "panels"), [(8, (1, 8)), (9, (2, 5))])
def test_many_channels_take_several_lines(n_channels: int, panels: tuple[int, int]):
    figure_type = pytest.importorskip("matplotlib.figure").Figure
    u = np.linspace(-1, 1, 5)
    psi = np.arange(n_channels) * np.ones((1, 5, 1))
    figure = figure_type()
    grid(figure, [LayerChannels("layer 0", u, u, psi), LayerChannels("layer 1", u, u, psi)], "T")
    drawn = [axes for axes in figure.axes if axes.lines]
    assert len(drawn) == 2 * n_channels
    for number, axes in enumerate(drawn):
        assert axes.get_subplotspec().get_gridspec().get_geometry() == panels
        assert axes.lines[0].get_ydata()[0] == number % n_channels


def test_u_is_taken_from_real_tokens_only(trained: Callable[..., Trained]):
    run = trained("attention=luna", "attention.M=2", "protocol.data.pad=full")
    (layer,) = channels(run, examples=4)
    batch = next(run.batches("val", 4))
    heads = run.network.encoder.blocks[0].attention.n_heads
    real = int(batch.mask.sum())
    assert real < batch.mask.numel()
    assert layer.u.size == real * heads * 2 * 2  # M = 2, of queries and of keys


def test_a_run_without_learned_channels_says_so(trained: Callable[..., Trained]):
    with pytest.raises(UserError, match="has no learned channels"):
        channels(trained("attention=linear"))


def test_maps_are_rows_of_the_attention_matrix(trained: Callable[..., Trained], tmp_path: Path):
    run = trained("attention=softmax", "model.n_layers=2")
    maps = attention_maps(run, 3)
    n = len(maps.ids)
    assert maps.rows.shape == (2, run.network.encoder.blocks[0].attention.n_heads, n)
    np.testing.assert_allclose(maps.rows.sum(-1), 1, rtol=1e-5)  # means of distributions
    ids = run.prepared.split("test").ids(np.array([3]))[0]
    assert (maps.ids == ids[ids > 0][:n]).all()
    pytest.importorskip("matplotlib")
    assert all(p.exists() for p in draw_maps(run, maps, "T", tmp_path / "m"))
    with pytest.raises(UserError, match="test has examples 0 to"):
        attention_maps(run, 10**6)


def test_polaformer_has_a_map_for_either_half_of_the_values(trained: Callable[..., Trained]):
    run = trained("attention=polaformer")
    maps = attention_maps(run, 3)
    assert maps.heads == [f"head {h}, {of} signs" for h in (0, 1) for of in ("equal", "opposite")]
    assert maps.rows.shape == (1, 4, len(maps.ids))
    np.testing.assert_allclose(maps.rows.sum(-1), 1, rtol=1e-4)
    assert np.abs(maps.rows[:, 0] - maps.rows[:, 1]).max() > 1e-4


def test_from_the_command_line(
    trained: Callable[..., Trained], tmp_path: Path, data_dir: Path, capsys
):
    pytest.importorskip("matplotlib")
    trained("attention=luna")
    folder = str(next(tmp_path.rglob("config.yaml")).parent)
    where = [folder, "--data-dir", str(data_dir), "--out", str(tmp_path / "figures")]
    assert main(["figures", "channels", *where, "--layout", "overlay"]) == 0
    assert main(["figures", "maps", *where, "--example", "2"]) == 0
    names = {p.name.split("-")[0] + p.suffix for p in (tmp_path / "figures").iterdir()}
    assert names == {"channels.png", "channels.svg", "maps.png", "maps.svg"}
    out = capsys.readouterr().out
    assert "example-2.png" in out
    for svg in (Path(line) for line in out.splitlines() if line.endswith(".svg")):
        assert "protocol luna v1" in svg.read_text(encoding="utf-8")
        assert "2 steps" in svg.read_text(encoding="utf-8")
    for checkpoint in Path(folder).glob("checkpoints/*.ckpt"):
        checkpoint.unlink()
    assert main(["figures", "maps", *where]) == 2
    assert "has no checkpoint: train the run again" in capsys.readouterr().err


def test_the_title_names_what_is_unusual_and_the_data(trained: Callable[..., Trained]):
    run = trained("attention=luna", "attention.M=2", "attention.envelope=scalar")
    assert run.name == "listops, luna M=2 envelope=scalar, seed 1, best checkpoint"
    assert run.conditions.endswith("2 steps of 8\ndata: a bundled miniature, for trying things out")


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"no folder of a run of lra train: it has no config\.yaml"):
        restore(tmp_path, tmp_path)
