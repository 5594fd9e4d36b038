"""Positions and the CLS token."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lra.base.config import ClsMask, Input, Positions
from lra.base.errors import UserError
from lra.data.arrays import Scale
from lra.model.embedding import Embedding

from .kit import CLEAN, OFFICIAL, Task, network, sinusoids


@pytest.mark.parametrize("positions", [Positions.learned, Positions.fixed])
@pytest.mark.parametrize(
    ("rule", "expected"), [(ClsMask.real, [True, True]), (ClsMask.first, [False, True])]
)
def test_cls_takes_position_0_and_a_place_in_the_mask(positions, rule, expected):
    style = replace(OFFICIAL, positions=positions, cls_mask=rule)
    embedding = Embedding(11, 12, 5, style, 0.0)
    with torch.no_grad():
        embedding.cls.fill_(3.0)
    ids = torch.tensor([[0, 4, 5, 0, 6], [4, 4, 5, 0, 6]])
    x, mask = embedding(ids, ids > 0)
    assert x.shape == (2, 6, 12)
    assert embedding.position.table.shape == (6, 12)
    torch.testing.assert_close(x[:, 0], (3 + embedding.position.table[0]).expand(2, -1))
    torch.testing.assert_close(x[:, 1:], embedding.token(ids) + embedding.position.table[1:])
    assert mask[:, 0].tolist() == expected
    assert torch.equal(mask[:, 1:], ids > 0)
    assert embedding(ids, None)[1] is None


@pytest.mark.parametrize("width", [8, 7])
def test_fixed_positions_interleave(width):
    style = replace(CLEAN, positions=Positions.fixed)
    embedding = Embedding(11, width, 4100, style, 0.0)
    table = embedding.position.table
    assert table.dtype == torch.float32
    rows = torch.tensor([0, 1, 77, 4099])
    torch.testing.assert_close(
        table[rows].double(), sinusoids(4100, width)[rows], rtol=0, atol=1e-7
    )
    assert table[0].tolist() == [0, 1] * (width // 2) + [0] * (width % 2)
    assert list(dict(embedding.named_parameters())) == ["token.weight"]
    assert "position.table" not in embedding.state_dict()


def test_grey_levels_can_be_read_as_numbers():
    """One linear map of (x - centre) / spread, whether levels come as ids or as numbers."""
    style = replace(CLEAN, input=Input.numbers, positions=Positions.learned)
    embedding = Embedding(256, 12, 3, style, 0.0, scale=Scale((122.6,), (61.0,))).double()
    weight, bias = embedding.token.map.weight, embedding.token.map.bias
    assert {name for name, _ in embedding.named_parameters()} == {
        "token.map.weight",
        "token.map.bias",
        "position.table",
    }
    assert "token.centre" not in embedding.state_dict()
    levels = torch.tensor([[0, 122, 255]])
    expected = (levels.double().unsqueeze(-1) - 122.6) / 61 * weight[:, 0] + bias
    for given in (levels, levels.double().unsqueeze(-1)):
        x, mask = embedding(given, None)
        assert mask is None
        torch.testing.assert_close(x, expected + embedding.position.table, rtol=0, atol=1e-6)


def test_channels_are_scaled_each_by_its_own():
    style = replace(CLEAN, input=Input.numbers, positions=Positions.none)
    scale = Scale((1.0, -2.0), (2.0, 0.5))
    embedding = Embedding(1, 4, 3, style, 0.0, scale=scale).double()
    given = torch.randn(2, 3, 2, dtype=torch.float64)
    scaled = torch.stack(((given[..., 0] - 1) / 2, (given[..., 1] + 2) * 2), -1)
    torch.testing.assert_close(embedding(given, None)[0], embedding.token.map(scaled))


def test_ids_that_are_names_are_not_read_as_numbers():
    with pytest.raises(UserError, match="names and no quantities"):
        network(replace(CLEAN, input=Input.numbers))
    network(replace(CLEAN, input=Input.numbers), task=Task(scale=Scale((0.0,), (1.0,))))


def test_numbers_are_read_in_float32_also_in_half_precision():
    """Blocks add to what stands here, and the head reads it in float32."""
    style = replace(CLEAN, input=Input.numbers, positions=Positions.none)
    net = network(style, task=Task(scale=Scale((0.0,), (1.0,)))).float().eval()
    numbers = torch.randn(2, 5, 1)
    with torch.autocast("cpu", torch.bfloat16):
        assert net.embedding(numbers, None)[0].dtype == torch.float32
        assert net(numbers, None).isfinite().all()
