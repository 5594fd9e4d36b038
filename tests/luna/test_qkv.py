"""An attention between its projections, and what may stand around it."""

from __future__ import annotations

from dataclasses import asdict
from typing import get_args

import pytest
import torch
from torch import nn

import luna
from luna import LunaError
from luna.around import Around, Dwc
from luna.local import KINDS
from luna.qkv import Style
from luna.surround import HeadNorm, OutputGate, ShortConv
from luna.testing.cases import difference, hidden, mask_of, shaken

SIZES = {"d_model": 32, "n_heads": 2, "max_len": 64}


def mixer(name: str, **settings) -> luna.Mixer:
    torch.manual_seed(0)
    return shaken(luna.mixer(name, **SIZES, **settings))


def test_it_is_the_formula_of_its_header():
    built, x, m = mixer("softmax"), hidden(), mask_of("prefix")
    q, k, v = (built.qkv(x).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)).unbind(0)
    out = built.attention(q, k, v, m).transpose(1, 2).flatten(2)
    assert difference(built(x, m), built.out(out), m) < 1e-12


@pytest.mark.parametrize(
    ("name", "options", "letters"),
    [
        ("softmax", {}, "qkvo"),
        ("reformer", {}, "qvo"),
        ("reformer", {"profile": "official"}, "qv"),
        ("conv", {}, "vo"),
        ("uniform", {}, "vo"),
        ("synthesizer", {"form": "random"}, "vo"),
        ("synthesizer", {"form": "dense"}, "qvo"),
        ("synthesizer", {"form": "dense+dot"}, "qkvo"),
    ],
)
def test_it_has_the_projections_that_its_method_names(name: str, options: dict, letters: str):
    built = mixer(name, **options)
    assert built.letters == letters
    assert built.qkv.out_features == 32 * len(letters.replace("o", ""))
    assert isinstance(built.out, nn.Linear) == ("o" in letters)


def test_letters_that_are_unknown_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(luna.get("uniform"), "projected", classmethod(lambda cls, profile: "kv"))
    with pytest.raises(LunaError, match="names its projections 'kv': write one of qkvo, qkv, qvo"):
        mixer("uniform")


def test_an_attention_may_override_forward_and_not_know_of_zeroed(monkeypatch: pytest.MonkeyPatch):
    method, x, m = luna.get("linear"), hidden(), mask_of("scatter")
    expected, before = mixer("linear")(x, m), method.forward

    def forward(self, q, k, v, mask=None, x=None):
        return before(self, q, k, v, mask, x)

    monkeypatch.setattr(method, "forward", forward)
    assert difference(mixer("linear")(x, m), expected, m) == 0


@pytest.mark.parametrize("causal", [False, True])
def test_a_short_convolution_is_a_sum_of_neighbours(causal: bool):
    conv = shaken(ShortConv(3, 4, causal=causal))
    x, m = torch.randn(2, 9, 3).double(), mask_of("scatter", 9)
    real = x * m.unsqueeze(-1)
    first = 3 if causal else 1  # tokens before the one that a sum is for
    expected = torch.zeros_like(x)
    for i in range(9):
        total = conv.bias.expand(2, 3).clone()
        for j in range(4):
            if 0 <= i - first + j < 9:
                total += conv.weight[:, 0, j] * real[:, i - first + j]
        expected[:, i] = nn.functional.silu(total)
    assert difference(conv(x, m), expected * m.unsqueeze(-1)) < 1e-12


def test_a_head_norm_makes_the_root_mean_square_one():
    norm = HeadNorm(2, 16).double()
    out = norm(100 * torch.randn(3, 2, 5, 16).double())
    assert torch.allclose(out.square().mean(-1).sqrt(), torch.ones(3, 2, 5).double())


def test_a_gate_has_the_rank_that_is_asked_for():
    full, low = OutputGate(32, 32), OutputGate(32, 32, rank=3)
    x = torch.randn(64, 32)
    assert torch.linalg.matrix_rank(full.project(x)) == 32
    without_bias = low.project(x) - low.project[1].bias
    assert torch.linalg.matrix_rank(without_bias, rtol=1e-4) == 3


def test_what_surrounds_an_attention_keeps_padding_out_and_learns():
    around = {"short_conv": 4, "head_norm": True, "gate": "low_rank", "dwc": "conv1d"}
    built, x, m = mixer("linear", **around), hidden(), mask_of("prefix")
    plain = mixer("linear")
    out = built(x, m)
    assert difference(out, plain(x, m), m) > 1e-3
    n = int(m[0].sum())
    assert difference(built(x[:1, :n]), out[:1, :n]) < 1e-10
    out.square().sum().backward()
    assert all(p.grad is not None for p in built.parameters())
    kinds = [kind for _, kind in built.parts()]
    assert kinds.count("local") == 2
    assert kinds.count("projections") == 4


def test_it_is_off_by_default_and_draws_nothing():
    with_none = mixer("linear", **asdict(Around()))
    assert [name for name, _ in with_none.named_parameters()] == [
        "qkv.weight",
        "qkv.bias",
        "out.weight",
        "out.bias",
    ]


@pytest.mark.parametrize(
    ("around", "words"),
    [
        (
            {"dwc": "conv3d"},
            "dwc=conv3d is out of range: it must be none, conv1d, conv2d or",
        ),
        ({"normalise": "max"}, "normalise=max is out of range: it must be sum, abs or rms"),
        ({"short_conv": -1}, "short_conv=-1 is out of range: it must be a whole number of tokens"),
        ({"head_norm": 1}, "head_norm=1 is out of range: it must be true or false"),
        ({"gate": "half"}, "gate=half is out of range: it must be none, full or low_rank"),
        ({"style": Style(qkv_dim=33)}, "2 heads do not divide a width of 33"),
    ],
)
def test_surroundings_that_cannot_be(around: dict, words: str):
    with pytest.raises(LunaError, match=words):
        mixer("linear", **around)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"dwc": "conv1d"}, "dwc='conv1d'"),
        ({"normalise": "rms"}, "normalise='rms'"),
        ({"short_conv": 4}, "short_conv=4"),
        ({"head_norm": True}, "head_norm=True"),
        ({"gate": "full"}, "gate='full'"),
        ({"style": Style(alibi=True)}, "alibi=True"),
        ({"style": Style(positions=nn.Identity)}, "rotary positions"),
    ],
)
def test_a_mixer_has_no_place_for_them(given: dict, words: str):
    with pytest.raises(LunaError, match=f"^{words} is for attentions, and 's4d' is a mixer"):
        mixer("s4d", **given)
    mixer("s4d", **asdict(Around()), style=Style(qkv_dim=16))


def test_every_local_branch_is_a_choice():
    assert get_args(Dwc) == ("none", *KINDS)


def test_a_stream_is_refused_where_it_would_need_the_tokens_before():
    built = mixer("linear", causal=True, short_conv=4)
    with pytest.raises(LunaError, match="cannot stream with a convolution"):
        built.step(None, hidden()[:, 0])
