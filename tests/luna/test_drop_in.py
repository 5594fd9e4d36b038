"""A method in place of nn.MultiheadAttention, in torch's own layers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import luna
from luna import LunaError


def layer(name: str, **settings) -> nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    first = {"batch_first": settings.get("batch_first", True)}
    made = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, **first)
    made.self_attn = luna.torch_attention(name, 32, 2, max_len=64, **settings)
    return made


def softmax_with_weights_of(theirs: nn.MultiheadAttention) -> nn.Module:
    ours = luna.torch_attention("softmax", 32, 2, max_len=64, batch_first=theirs.batch_first)
    with torch.no_grad():
        ours.mixer.qkv.weight.copy_(theirs.in_proj_weight)
        ours.mixer.qkv.bias.copy_(theirs.in_proj_bias)
        ours.mixer.out.weight.copy_(theirs.out_proj.weight)
        ours.mixer.out.bias.copy_(theirs.out_proj.bias)
    return ours


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_softmax_with_torchs_weights_is_torchs_layer(training: bool, batch_first: bool):
    """Also in eval mode, where torch's layer would take a fused path past its attention."""
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=batch_first)
    nn.init.normal_(theirs.self_attn.in_proj_bias)
    ours = copy.deepcopy(theirs)
    ours.self_attn = softmax_with_weights_of(theirs.self_attn)
    x, padding = torch.randn(3, 20, 32), torch.arange(20) > torch.tensor([[9], [19], [14]])
    given = x if batch_first else x.transpose(0, 1)
    with torch.no_grad():
        outs = [
            made.train(training)(given, src_key_padding_mask=padding) for made in (theirs, ours)
        ]
    real = ~padding if batch_first else ~padding.T
    assert_close(*(out[real] for out in outs))


@pytest.mark.parametrize("name", luna.names())
def test_every_method_stands_in_torchs_encoder(name: str):
    encoder = nn.TransformerEncoder(layer(name), 2, enable_nested_tensor=False).eval()
    x, padding = torch.randn(2, 64, 32), torch.arange(64) > torch.tensor([[63], [40]])
    out = encoder(x, src_key_padding_mask=padding)
    changed = x + 100.0 * padding.unsqueeze(-1)
    assert_close(encoder(changed, src_key_padding_mask=padding)[~padding], out[~padding])
    out.sum().backward()


def test_a_causal_one_follows_torchs_causal_mask():
    made, x = layer("luna", causal=True), torch.randn(2, 30, 32)
    mask = nn.Transformer.generate_square_subsequent_mask(30)
    out = made(x, src_mask=mask, is_causal=True)
    changed = x.clone()
    changed[:, 20:] += 1
    assert_close(made(changed, src_mask=mask, is_causal=True)[:, :20], out[:, :20])


def test_what_it_cannot_do_is_refused():
    made, x = luna.torch_attention("luna", 32, 2, max_len=64), torch.randn(2, 30, 32)
    with pytest.raises(LunaError, match="within one sequence"):
        made(x, x.clone(), x)
    with pytest.raises(LunaError, match="need_weights=False"):
        made(x, x, x, need_weights=True)
    for asked in ({"attn_mask": torch.zeros(30, 30)}, {"is_causal": True}):
        with pytest.raises(LunaError, match="build it with causal=True"):
            made(x, x, x, **asked)
