"""Figures of trained runs: channels and maps."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import luna
from lra.base.errors import UserError
from lra.cli import main
from lra.figures import runs
from lra.results.trained import Trained

from .conftest import LUNA, SOFTMAX, Figure


def test_channels_are_those_of_the_checkpoint(
    trained: Callable[..., Trained], tmp_path: Path, drawn: list[Figure]
):
    run = trained(*LUNA)
    (layer,) = runs.of_run(run)
    attention = run.network.encoder.blocks[0].attention.attention
    assert layer.psi.shape == (attention.n_heads, runs.POINTS, 3)
    u = torch.from_numpy(layer.grid[[0, 20, 399]])
    c = attention.map.channels  # psi_l(u) = relu(a_l . relu(e_l u + f_l) + g_l), group 1, channel 2
    hidden = (c.e[1, 2] * u[:, None] + c.f[1, 2]).relu()
    psi = (hidden @ c.a[1, 2] + c.g[1, 2]).relu()
    np.testing.assert_allclose(layer.psi[1, [0, 20, 399], 2], psi.detach(), rtol=1e-4, atol=1e-6)
    assert runs.title_of(run).splitlines() == [
        "listops, LUNA, a map per head, 2 x 3, seed 1, best checkpoint",
        "protocol luna v1, model small, 2 steps of 8; data: a bundled miniature, for trying things "
        "out",
    ]
    assert all(path.exists() for path in runs.draw_layers([layer], "T", tmp_path / "c"))
    above, below = drawn[0].axes
    live = [psi for channel in layer.psi.T if channel.any() for psi in channel.T]
    for line, psi in zip(above.get_lines(), live, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), psi)
    (outline,) = below.patches
    low, high = layer.grid[[0, -1]]
    inside = np.mean((layer.u >= low) & (layer.u <= high))
    bars = outline.get_xy()[1:120:2, 1]  # a height per bin
    assert bars.sum() == pytest.approx(100 * inside)


def test_maps_of_queries_and_of_keys_have_their_own_channels():
    attention = luna.build("luna", n_heads=2, head_dim=4, max_len=8, M=2, tie_qk=False)
    q, k, v = torch.randn(3, 1, 2, 5, 4)
    mask = torch.tensor([[True, True, False, True, True]])
    layers = runs.observe(attention, lambda: attention(q, k, v, mask))
    assert [layer.name for layer in layers] == ["layer 0, queries", "layer 0, keys"]
    for layer, x, features in zip(layers, (q, k), (attention.map, attention.map_k), strict=True):
        u = features.projections(x).detach()[:, :, mask[0]]
        np.testing.assert_allclose(np.sort(layer.u), np.sort(u.flatten()), rtol=1e-5)


def test_maps_are_rows_of_the_attention_matrix(
    trained: Callable[..., Trained], tmp_path: Path, drawn: list[Figure]
):
    run = trained(*SOFTMAX)
    maps = runs.attention_row(run, 3)
    n, heads = len(maps.ids), run.network.encoder.blocks[0].attention.n_heads
    assert maps.rows.shape == (2, heads, n)
    np.testing.assert_allclose(maps.rows.sum(-1), 1, rtol=1e-5)
    ids = run.prepared.split("test").ids(np.array([3]))[0]
    assert (maps.ids == ids[ids > 0][:n]).all()
    weights = np.random.default_rng(0).dirichlet(np.ones(100), size=(2, 1))
    few = maps._replace(ids=np.ones(100, int), rows=weights)
    runs.draw_rows(run, few, "T", tmp_path / "m")
    picture = drawn[-1].axes[1].images[0]
    values = np.asarray(picture.get_array()).ravel()[:100]
    np.testing.assert_allclose(values, weights[1].ravel() * 100)
    assert (picture.norm.vmin, picture.norm.vmax) == runs.SCALE
    with pytest.raises(UserError, match="there is no test example 1000000: choose from 0 to"):
        runs.attention_row(run, 10**6)


def test_figures_of_a_run_from_the_command_line(
    trained_folder: Callable[..., Path], tmp_path: Path, data_dir: Path, capsys, drawn: list[Figure]
):
    folder, plain = str(trained_folder(*LUNA)), str(trained_folder(*SOFTMAX))
    where = ["--data-dir", str(data_dir), "--out", str(tmp_path / "figures")]
    assert main(["figures", "channels", folder, *where]) == 0
    assert main(["figures", "maps", folder, *where, "--example", "2"]) == 0
    assert "example-2.png" in capsys.readouterr().out
    names = {p.name.split("-")[0] + p.suffix for p in (tmp_path / "figures").iterdir()}
    assert names == {"channels.png", "channels.pdf", "maps.png", "maps.pdf"}
    assert main(["figures", "channels", plain, *where]) == 2
    assert "no learned channels" in capsys.readouterr().err
    bare = shutil.copytree(folder, tmp_path / "run", ignore=shutil.ignore_patterns("*.ckpt"))
    assert main(["figures", "maps", str(bare), *where]) == 2
    assert "best.ckpt is missing: train the run again" in capsys.readouterr().err
