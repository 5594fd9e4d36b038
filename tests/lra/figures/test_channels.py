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
from lra.figures.trained import conditions, name
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
    assert name(run) == "listops, luna M=2 L=3 share=head, seed 1, best checkpoint"
    assert conditions(run).endswith("\ndata: a bundled miniature, for trying things out")
    pytest.importorskip("matplotlib")
    paths = channels.draw_channels([layer], "T", tmp_path / "grid")
    assert [p.suffix for p in paths] == [".png", ".svg"]
    assert all(p.stat().st_size > 5000 for p in paths)


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
