"""Conversion and back: what changes, what stays, and what is refused."""

from __future__ import annotations

import pytest
import torch

import luna
from luna.base import LunaError
from luna.convert import attention_maps, convert, describe, feature_parameters, host, revert
from luna.convert.maps import softmax_rows

from .kit import bert, logits, text

# A mixer has no q, k, v to be given.
ATTENTIONS = [name for name in luna.names() if not luna.registry.mixes(name)]


@pytest.mark.parametrize("name", sorted({*ATTENTIONS} - {"transnormer"}))
def test_padding_changes_nothing(name):
    model = convert(bert(), name)
    together = text((5, 12))
    short = {key: t[:1, :5] for key, t in together.items()}
    long = {key: t[1:] for key, t in together.items()}
    got = logits(model, together)
    torch.testing.assert_close(got[:1], logits(model, short), atol=1e-5, rtol=0)
    torch.testing.assert_close(got[1:], logits(model, long), atol=1e-5, rtol=0)


def test_layers_receive_a_key_mask_or_none():
    seen = []

    def spy(layer, given):
        seen.append(given.mask)
        return given.v, None

    model, batch = convert(bert(), "hedgehog"), text((5, 12))
    with host.probing(model, spy):
        logits(model, batch)
        logits(model, {"input_ids": batch["input_ids"]})
    assert [m is None for m in seen] == [False, False, True, True]
    assert seen[0].dtype == torch.bool
    assert torch.equal(seen[0], batch["attention_mask"].bool())
    for shape in ((2, 1, 12, 12), (2, 12, 12)):
        with pytest.raises(LunaError, match=r"give it an attention mask \(B, n\)"):
            logits(model, batch | {"attention_mask": torch.ones(shape).bool()})


def test_layers_that_stay_softmax():
    """layers=[1] against a model whose second layer alone is computed by hand."""
    model, batch = bert(), text()
    student = convert(model, "hedgehog", layers=[1])
    phi = student.bert.encoder.layer[1].attention.self.luna_layer.attention
    calls = []

    def by_hand(layer, given):
        q, k, v, mask, _ = given
        calls.append(layer)
        if len(calls) == 1:
            return softmax_rows(q, k, mask) @ v, None
        return phi(q, k, v, mask), None

    reference = convert(model, "softmax")
    with host.probing(reference, by_hand):
        expected = logits(reference, batch)
    torch.testing.assert_close(logits(student, batch), expected, atol=1e-6, rtol=0)
    assert not torch.equal(logits(convert(model, "hedgehog"), batch), logits(student, batch))
    assert describe(student)["layers"] == ["bert.encoder.layer.1.attention.self"]
    assert all(".layer.1." in name for name in feature_parameters(student))
    for one in ("last:1", 1):
        assert describe(convert(model, layers=one))["layer_numbers"] == [1]


def test_the_seed_decides_the_feature_maps_and_leaves_the_global_stream_alone():
    a, b, c = (feature_parameters(convert(bert(), "t2r", seed=seed)) for seed in (0, 0, 1))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not any(torch.equal(a[name], c[name]) for name in a)
    first, second = (t for name, t in a.items() if name.endswith("weight"))
    assert not torch.equal(first, second)  # of two layers
    model = bert()
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    convert(model, "luna")
    assert torch.equal(torch.rand(1), expected)


def test_dropout_of_the_host_stays_with_methods_that_have_weights():
    model = bert(attention_probs_dropout_prob=0.3)
    layer = convert(model, "softmax").bert.encoder.layer[0].attention.self.luna_layer.attention
    assert layer.slot.dropout == 0.3


def test_a_converted_model_compiles_without_a_break():
    model = convert(bert(), "hedgehog")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(**text()).logits, logits(model, text()))
    with pytest.raises(LunaError, match="compiled"):
        convert(torch.compile(bert(), backend="eager"), "luna")


def test_converting_twice_and_reverting_a_plain_model_are_refused():
    with pytest.raises(LunaError, match=r"already runs 't2r'.*revert"):
        convert(convert(bert(), "t2r"), "luna")
    for function in (revert, lambda model: attention_maps(model, text())):
        with pytest.raises(LunaError, match="was not converted"):
            function(bert())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"attention": "lunar"}, "unknown attention 'lunar'; did you mean luna"),
        ({"attention": "luna", "m": 4}, "no option 'm'"),
        ({"attention": "luna", "M": 0}, "luna.M must be at least 1"),
        ({"attention": "hedgehog", "d_out": 3}, "d_out = head_dim = 8"),
        ({"preset": "listng"}, "'luna' has no preset 'listng'; did you mean listing"),
        ({"attention": "t2r", "preset": "listing"}, "'t2r' has no preset 'listing'; known: none"),
        ({"attention": "linear", "normalise": "rms"}, "must divide by the sum of weights"),
        ({"attention": "transnormer"}, "must divide by the sum of weights"),
        ({"dropout": 0.1}, "cannot be given dropout: .* softmax attention that it replaces"),
        ({"attention": "softmax", "causal": False}, "cannot be given causal"),
        ({"n_heads": 4, "head_dim": 8}, "cannot be given n_heads, head_dim"),
        ({"layer": 1, "n_layers": 2}, "cannot be given layer, n_layers"),
        ({"attention": "t2r", "profile": "stric"}, "profile"),
        ({"layers": [2]}, "from 0 to 1"),
        ({"layers": []}, "from 0 to 1"),
        ({"layers": 2}, "from 0 to 1"),
        ({"layers": None}, "from 0 to 1"),
        ({"layers": [0, "a"]}, "from 0 to 1"),
        ({"layers": "last:3"}, "k in 1..2"),
        ({"layers": "first"}, "'all', 'last:k'"),
    ],
)
def test_wrong_arguments_leave_the_model_as_it_was(arguments, reason):
    model = bert()
    expected = logits(model, text())
    with pytest.raises(LunaError, match=reason):
        convert(model, inplace=True, **arguments)
    assert describe(model) is None
    assert torch.equal(logits(model, text()), expected)


def test_presets_of_luna_are_named_by_their_options():
    """However the options were given; the listing's are LUNA's own defaults."""
    wide, listing = {"M": 16, "L": 1, "nonneg": "exp"}, {"M": 8, "L": 8, "nonneg": True}
    defaults = {key: p.default for key, p in luna.options("luna").items()}
    assert listing.items() <= defaults.items()
    for arguments, options, name in (
        ({}, wide, "wide"),
        ({"preset": "listing"}, listing, "listing"),
        (listing, listing, "listing"),
        ({"preset": "listing", "L": 4}, listing | {"L": 4}, None),
    ):
        description = describe(convert(bert(), "luna", **arguments))
        assert (description["options"], description["preset"]) == (
            {"share": "head"} | options,
            name,
        )


def test_linearize_is_convert():
    assert luna.linearize is convert
    with pytest.raises(AttributeError, match="linearise"):
        luna.linearise  # noqa: B018
