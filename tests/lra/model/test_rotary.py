"""Rotary positions in the backbone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import luna
from lra import data
from lra.base.config import Positions
from lra.base.errors import UserError
from lra.model.build import build
from lra.model.rotary import Rotary, turning
from lra.settings.compose import compose

N, D = 12, 8


def test_on_an_image_they_depend_on_both_distances():
    rows, columns = 3, 4
    torch.manual_seed(0)
    turned = Rotary(D, N, (rows, columns), cls=False)
    q, k = (turned(x.expand(1, 1, N, D)) for x in torch.randn(2, 1, 1, 1, D, dtype=torch.float64))
    dots = (q @ k.mT)[0, 0]  # of one query and one key that stand at every position
    by_shift: dict[tuple[int, int], float] = {}
    for i in range(N):
        for j in range(N):
            shift = (i // columns - j // columns, i % columns - j % columns)
            value = float(dots[i, j])
            assert by_shift.setdefault(shift, value) == pytest.approx(value, abs=1e-5)
    assert len({round(value, 4) for value in by_shift.values()}) > len(by_shift) // 2


def test_the_cls_token_is_not_turned_and_the_others_are_counted_without_it():
    with_cls, without = Rotary(D, N + 1, None, cls=True), Rotary(D, N, None, cls=False)
    x = torch.randn(1, 1, N + 1, D)
    out = with_cls(x)
    assert torch.equal(out[:, :, 0], x[:, :, 0])
    torch.testing.assert_close(out[:, :, 1:], without(x[:, :, 1:]))


def test_it_is_llamas():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = llama.LlamaConfig(hidden_size=4 * D, num_attention_heads=4, max_position_embeddings=N)
    q, k = torch.randn(2, 2, 4, N, D)
    cos, sin = llama.LlamaRotaryEmbedding(config)(q, torch.arange(N)[None])
    expected = llama.apply_rotary_pos_emb(q, k, cos, sin)
    turned = Rotary(D, N, None, cls=False)
    for ours, theirs in zip((turned(q), turned(k)), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


SMALL = [
    "task=listops",
    "compute=off",
    "protocol.data.max_length=16",
    "protocol.data.pad_to=16",
    "model.d_model=16",
    "model.qkv_dim=16",
    "model.mlp_dim=16",
    "model.n_layers=1",
]


def network(attention: str, positions: str) -> nn.Module:
    words = [*f"attention={attention}".split(), f"protocol.style.positions={positions}"]
    run = compose([*SMALL, *words])
    torch.manual_seed(0)
    return build(data.of(run.task), run.attention, run.model, run.protocol, seed=1).eval()


@pytest.mark.parametrize(
    ("attention", "positions"),
    [("softmax", "rope"), ("luna", "rope"), ("linear", "rope"), ("softmax", "alibi")],
)
def test_the_network_sees_the_order_and_padding_does_not_matter(attention: str, positions: str):
    net = network(attention, positions)
    ids = torch.tensor([[3, 5, 7, 9, 2, 4]])
    swapped = ids[:, [1, 0, 2, 3, 4, 5]]
    assert (net(ids) - net(swapped)).abs().max() > 1e-6
    padded = torch.nn.functional.pad(ids, (0, 4))
    torch.testing.assert_close(net(padded, padded > 0), net(ids), rtol=1e-4, atol=1e-5)
    blind = network(attention, "none")
    torch.testing.assert_close(blind(ids), blind(swapped), rtol=1e-4, atol=1e-5)
    assert not [name for name in net.state_dict() if "turned" in name]  # nothing to save


@pytest.mark.parametrize(
    ("attention", "positions", "sentence"),
    [
        ("uniform", "rope", r"positions=rope turns .* 'uniform' compares none"),
        ("synthesizer attention.form=random", "rope", r"'synthesizer' compares none"),
        ("linear", "alibi", "attention 'linear' has no ALiBi form"),
        ("softmax protocol.style.pooling=cls", "alibi", "the CLS token has no distance"),
        ("linear", "rope2d", "positions=rope2d is for image tasks"),
    ],
)
def test_where_it_makes_no_sense_it_is_refused(attention: str, positions: str, sentence: str):
    with pytest.raises((UserError, luna.LunaError), match=sentence):
        network(attention, positions)


def test_heads_must_be_wide_enough_for_two_dimensions():
    network("synthesizer", "rope")  # as the arena's models have it: it compares, too
    narrow = luna.build("linear", n_heads=1, head_dim=6, max_len=N)
    with pytest.raises(UserError, match="does not divide heads of width 6"):
        turning(Positions.rope2d, (3, 4), cls=False)(narrow)
    assert turning(Positions.learned, None, cls=False) is None
