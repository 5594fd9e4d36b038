"""Which models can be converted, and how long their inputs get."""

from __future__ import annotations

import pytest
from torch import nn

from luna.base import LunaError
from luna.convert import convert, describe

from .kit import HOSTS, POSITIONS, SIZE, transformers


@pytest.mark.parametrize(
    ("host", "limit"),
    [
        ("bert", POSITIONS),
        ("roberta", POSITIONS - 2),  # positions start after that of padding
        ("vit", 17),
        ("deit", 18),
    ],
)
def test_the_longest_input_is_the_hosts(host, limit):
    assert describe(convert(HOSTS[host](), "t2r"))["max_len"] == limit


def test_what_cannot_be_converted_is_refused_with_the_reason():
    t = transformers
    small = {k: v for k, v in SIZE.items() if k != "num_labels"}
    decoder = t.BertConfig(**small, is_decoder=True)
    neox = t.GPTNeoXConfig(**small)
    swin = t.SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[1], num_heads=[2])
    cross = t.BertConfig(**small, is_decoder=True, add_cross_attention=True)
    for model, reason in (
        (nn.Linear(3, 3), "has no attention"),
        (nn.MultiheadAttention(8, 2), "MultiheadAttention has no attention|cannot be converted"),
        (t.BertLMHeadModel(decoder), "is causal here, and BertSelfAttention"),
        (t.GPTNeoXModel(neox), r"GPTNeoXAttention"),
        (t.SwinModel(swin), r"SwinAttention|SwinSelfAttention"),
        (t.BertModel(cross), "BertCrossAttention"),
    ):
        before = {n for n, _ in model.named_modules()}
        with pytest.raises(LunaError, match=reason):
            convert(model, "luna", inplace=True)
        assert {n for n, _ in model.named_modules()} == before
