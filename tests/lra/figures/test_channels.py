"""LUNA's channels, of trained runs and of converted models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import luna
from lra.base.config import UserError
from lra.figures import channels, students
from lra.figures.channels import COLOURS, DEAD, LayerChannels
from lra.training.trained import Trained

from .conftest import LUNA, PAIR, SOFTMAX, TEXT


def test_channels_are_those_of_the_checkpoint(trained: Callable[..., Trained], tmp_path: Path):
    run = trained(*LUNA)
    (layer,) = channels.of_run(run, examples=8, points=50)
    features = run.network.encoder.blocks[0].attention.attention.map
    assert layer.psi.shape == (features.channels.g.shape[0], 50, 3)
    u = torch.from_numpy(layer.grid[[0, 20, 49]])
    c = features.channels  # psi_l(u) = relu(a_l . relu(e_l u + f_l) + g_l), group 1, channel 2
    hidden = (c.e[1, 2] * u[:, None] + c.f[1, 2]).relu()
    psi = (hidden @ c.a[1, 2] + c.g[1, 2]).relu()
    np.testing.assert_allclose(layer.psi[1, [0, 20, 49], 2], psi.detach(), rtol=1e-4, atol=1e-6)
    pytest.importorskip("matplotlib")
    paths = channels.draw_channels([layer], "T", tmp_path / "grid")
    assert [p.suffix for p in paths] == [".png", ".svg"]
    assert all(p.stat().st_size > 5000 for p in paths)


def test_a_channel_that_is_dead_in_one_layer_is_drawn_alive_in_the_next():
    figure_type = pytest.importorskip("matplotlib.figure").Figure
    u = np.linspace(-1, 1, 5)
    alive = np.ones((1, 5, 2))
    dead = alive * [0, 1]
    layers = [LayerChannels(f"layer {i}", u, u, psi) for i, psi in enumerate((dead, alive))]
    figure = figure_type()
    channels.overlay(figure, layers, 1, "T")
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
    layers = [LayerChannels(f"layer {i}", u, u, psi) for i in range(2)]
    channels.grid(figure, layers, "T")
    drawn = [axes for axes in figure.axes if axes.lines]
    assert len(drawn) == 2 * n_channels
    for number, axes in enumerate(drawn):
        assert axes.get_subplotspec().get_gridspec().get_geometry() == panels
        assert axes.lines[0].get_ydata()[0] == number % n_channels


def test_u_is_taken_from_real_tokens_only(trained: Callable[..., Trained]):
    run = trained(*LUNA)
    (layer,) = channels.of_run(run, examples=4)
    batch = next(iter(run.batches("val", 4)))
    heads = run.network.encoder.blocks[0].attention.n_heads
    real = int(batch.mask.sum())
    assert real < batch.mask.numel()
    assert layer.u.size == real * heads * 2 * 2  # M = 2, of queries and of keys


def test_maps_of_queries_and_of_keys_have_their_own_channels():
    attention = luna.build("luna", n_heads=2, head_dim=4, max_len=8, M=2, tie_qk=False)
    q, k, v = torch.randn(3, 1, 2, 5, 4)
    mask = torch.tensor([[True, True, False, True, True]])
    found = channels.observe(attention, lambda: attention(q, k, v, mask), "a run", 10)
    assert [layer.name for layer in found] == ["layer 0, queries", "layer 0, keys"]
    for layer, x, own in zip(found, (q, k), (attention.map, attention.map_k), strict=True):
        u = own.projections(x).detach()[:, :, mask[0]]
        np.testing.assert_allclose(np.sort(layer.u), np.sort(u.flatten()), rtol=1e-5)


def test_a_run_without_learned_channels_says_so(trained: Callable[..., Trained]):
    with pytest.raises(UserError, match="has no learned channels"):
        channels.of_run(trained(*SOFTMAX))


def test_channels_of_a_converted_layer_over_its_own_inputs(text_models: dict[str, Path]):
    (student,) = students.open_students([text_models["luna"]])
    batches = students.examples(student, [TEXT, f"{TEXT}\t{PAIR}"], None, [])
    (layer,) = channels.of_student(student, batches, points=30)
    assert layer.name == "layer 1"  # layer 0 is softmax still
    count = sum(b["input_ids"].numel() for b in batches)
    assert layer.u.size == count * 4 * 3 * 2  # 4 heads, M = 3, queries and keys
    attention = student.model.bert.encoder.layer[1].attention.self.luna_attn
    u, c = torch.from_numpy(layer.grid), attention.map.channels
    hidden = (c.e[2, 1] * u[:, None] + c.f[2, 1]).relu()  # head 2, channel 1
    psi = torch.nn.functional.softplus(hidden @ c.a[2, 1] + c.g[2, 1])
    np.testing.assert_allclose(layer.psi[2, :, 1], psi.detach(), rtol=1e-4, atol=1e-6)
