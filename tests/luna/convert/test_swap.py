"""Conversion and back: what changes, what stays, what masks mean, what is refused (V1-V5, V13)."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

import luna
from luna.base import LunaError
from luna.convert import attention_maps, convert, describe, feature_parameters, revert
from luna.convert import host as seam
from luna.convert.losses import softmax_rows
from luna.convert.swap import named

from .kit import HOSTS, POSITIONS, SIZE, bert, images, inputs_of, logits, text, transformers, vit


def hidden(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return model.base_model(**batch).last_hidden_state


@pytest.mark.parametrize("make", HOSTS.values(), ids=HOSTS)
def test_V1_convert_then_revert_is_the_original_bit_for_bit(make):
    model = make()
    batch, before = inputs_of(model), copy.deepcopy(model.state_dict())
    expected = logits(model, batch)

    student = convert(model, "luna")
    assert not torch.equal(logits(student, batch), expected)
    assert torch.equal(logits(model, batch), expected)  # a new object: the model is untouched
    state = student.state_dict()
    for name, tensor in before.items():
        assert torch.equal(state[name], tensor), name
    assert all(".luna_attn." in name for name in state.keys() - before.keys())

    back = revert(student)
    assert torch.equal(logits(back, batch), expected)
    assert back.state_dict().keys() == before.keys()
    assert back.config.to_dict() == model.config.to_dict()
    assert back.config._attn_implementation == model.config._attn_implementation


def test_V1_in_place():
    model = bert()
    expected = logits(model, text())
    assert convert(model, "t2r", inplace=True) is model
    assert not torch.equal(logits(model, text()), expected)
    assert revert(model, inplace=True) is model
    assert torch.equal(logits(model, text()), expected)
    assert describe(model) is None


@pytest.mark.parametrize("name", luna.names())
def test_V2_padding_changes_nothing(name):
    model = convert(bert(), name)
    together = text((5, 12))
    short = {key: t[:1, :5] for key, t in together.items()}
    long = {key: t[1:] for key, t in together.items()}
    got = logits(model, together)
    torch.testing.assert_close(got[:1], logits(model, short), atol=1e-5, rtol=0)
    torch.testing.assert_close(got[1:], logits(model, long), atol=1e-5, rtol=0)


def test_V2_the_mask_function_is_what_makes_it_true():
    """Without it transformers hands every layer None; the test above must be able to see that."""
    model = convert(bert(), "hedgehog")
    together = text((5, 12))
    short = {key: t[:1, :5] for key, t in together.items()}
    from transformers.masking_utils import AttentionMaskInterface

    registered = AttentionMaskInterface._global_mapping.pop(seam.IMPLEMENTATION)
    try:
        difference = (logits(model, together)[:1] - logits(model, short)).abs().max()
    finally:
        AttentionMaskInterface.register(seam.IMPLEMENTATION, registered)
    assert difference > 1e-3


def test_V3_layers_receive_a_key_mask_or_none():
    seen = []

    def spy(module, q, k, v, mask, x):
        seen.append(mask)
        return v, None

    model, batch = convert(bert(), "hedgehog"), text((5, 12))
    with seam.probing(model, spy):
        logits(model, batch)
        logits(model, {"input_ids": batch["input_ids"]})
    assert [m is None for m in seen] == [False, False, True, True]
    assert seen[0].dtype == torch.bool
    assert torch.equal(seen[0], batch["attention_mask"].bool())


def test_V3_four_dimensional_masks():
    model, batch = convert(bert(), "hedgehog"), text((5, 12))
    keep = batch["attention_mask"].bool()[:, None, None, :].expand(2, 1, 12, 12)
    least = torch.finfo(torch.float32).min
    additive = torch.zeros(2, 1, 12, 12).masked_fill(~keep, least)
    expected = logits(model, batch)
    for mask in (keep, additive):
        got = logits(model, {"input_ids": batch["input_ids"], "attention_mask": mask})
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=0)
    # Nothing padded: all zeros, which a guess at the polarity would read as all padding.
    free = {"input_ids": batch["input_ids"], "attention_mask": torch.zeros(2, 1, 12, 12)}
    torch.testing.assert_close(
        logits(model, free), logits(model, {"input_ids": batch["input_ids"]}), atol=1e-6, rtol=0
    )
    for mask, reason in (
        (keep.tril(), "other keys from other queries"),
        (keep.float(), "values between"),
        (keep.long(), "bool"),
    ):
        with pytest.raises(LunaError, match=reason):
            logits(model, {"input_ids": batch["input_ids"], "attention_mask": mask})


@pytest.mark.parametrize("name", ["softmax", "luna", "hedgehog", "t2r", "uniform"])
def test_V4_all_ones_is_no_mask(name):
    model, batch = convert(bert(), name), text((12, 12))
    assert torch.equal(logits(model, batch), logits(model, {"input_ids": batch["input_ids"]}))


@pytest.mark.parametrize("make", HOSTS.values(), ids=HOSTS)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_V5_softmax_is_the_identity(make, implementation):
    model = make()
    model.set_attn_implementation(implementation)
    batch = inputs_of(model)
    real = batch.get("attention_mask")
    student = convert(model, "softmax")
    torch.testing.assert_close(logits(student, batch), logits(model, batch), atol=1e-6, rtol=0)
    a, b = hidden(student, batch), hidden(model, batch)
    if real is not None:
        a, b = a[real.bool()], b[real.bool()]
    torch.testing.assert_close(a, b, atol=2e-6, rtol=0)


def test_V13_layers_left_as_softmax():
    """layers=[1] against a model whose second layer alone is answered by hand."""
    model, batch = bert(), text()
    student = convert(model, "hedgehog", layers=[1])
    phi = student.bert.encoder.layer[1].attention.self.luna_attn
    calls = []

    def by_hand(module, q, k, v, mask, x):
        calls.append(module)
        if len(calls) == 1:
            return softmax_rows(q, k, mask) @ v, None
        return phi(q, k, v, mask), None

    reference = convert(model, "softmax")
    with seam.probing(reference, by_hand):
        expected = logits(reference, batch)
    torch.testing.assert_close(logits(student, batch), expected, atol=1e-6, rtol=0)
    assert describe(student)["layers"] == ["bert.encoder.layer.1.attention.self"]
    assert all(".layer.1." in name for name in feature_parameters(student))
    assert describe(convert(model, layers="last:1"))["layer_numbers"] == [1]


def test_V13_none_of_the_layers_converted_differs_from_all():
    model, batch = bert(), text()
    outs = [logits(convert(model, "t2r", layers=which), batch) for which in ([0], [1], "all")]
    assert not torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[1], outs[2])


@pytest.mark.parametrize("make", HOSTS.values(), ids=HOSTS)
def test_attention_maps_are_the_hosts_own_and_the_students(make):
    model = make()
    batch = inputs_of(model)
    maps = attention_maps(convert(model, "hedgehog"), batch)
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        expected = eager(**batch, output_attentions=True).attentions
    real = batch.get("attention_mask")
    real = slice(None) if real is None else real.bool()
    for ours, theirs in zip(maps.teacher, expected, strict=True):
        ours, theirs = (t.transpose(1, 2)[real] for t in (ours, theirs))
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    for A in maps.student:
        rows = A.transpose(1, 2)[real].sum(-1)
        torch.testing.assert_close(rows, torch.ones_like(rows))


def test_output_attentions_gives_the_students_maps_on_request():
    student, batch = convert(bert(), "luna"), text()
    with torch.no_grad():
        out = student(**batch, output_attentions=True)
    for ours, theirs in zip(attention_maps(student, batch).student, out.attentions, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_feature_maps_are_per_layer_and_head_and_differ():
    first, second = (
        convert(bert(), "luna").bert.encoder.layer[i].attention.self.luna_attn for i in (0, 1)
    )
    weight = first.map.projections.weight
    assert len(weight) == SIZE["num_attention_heads"]
    assert not torch.equal(weight[0], weight[1])
    assert not torch.equal(weight, second.map.projections.weight)


def test_the_seed_decides_the_feature_maps_and_leaves_the_global_stream_alone():
    a, b, c = (feature_parameters(convert(bert(), "t2r", seed=seed)) for seed in (0, 0, 1))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not any(torch.equal(a[name], c[name]) for name in a)
    model = bert()
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    convert(model, "luna")
    assert torch.equal(torch.rand(1), expected)


def test_positions_are_the_hosts():
    def limit(model):
        return describe(convert(model, "t2r"))["max_len"]

    assert limit(bert()) == POSITIONS
    assert limit(HOSTS["roberta"]()) == POSITIONS - 2  # they start after that of padding
    assert limit(vit()) == 17
    assert limit(HOSTS["deit"]()) == 18


def test_dropout_of_the_host_stays_with_methods_that_have_weights():
    model = bert(attention_probs_dropout_prob=0.3)
    layer = convert(model, "softmax").bert.encoder.layer[0].attention.self.luna_attn
    assert layer.slot.dropout == 0.3


def test_context_dropout_acts_in_training_only():
    batch = text()
    quiet = bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout=0.0)
    plain, noisy = convert(quiet, "t2r"), convert(quiet, "t2r", context_dropout=0.5)
    assert torch.equal(logits(plain, batch), logits(noisy, batch))
    expected = logits(plain.train(), batch)
    torch.testing.assert_close(expected, logits(plain.eval(), batch))
    assert not torch.allclose(logits(noisy.train(), batch), expected)


@pytest.mark.parametrize("make", [bert, vit], ids=["bert", "vit"])
@pytest.mark.parametrize("name", ["luna", "hedgehog", "t2r"])
def test_half_precision_hosts(make, name):
    model = make()
    batch = inputs_of(model)
    expected = logits(convert(model, name), batch)
    student = convert(model.to(torch.bfloat16), name)
    assert {p.dtype for p in feature_parameters(student).values()} == {torch.float32}
    half = {k: t.to(torch.bfloat16) if t.is_floating_point() else t for k, t in batch.items()}
    got = logits(student, half)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), expected, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("make", [bert, vit], ids=["bert", "vit"])
def test_gradient_checkpointing_changes_no_gradient(make):
    model = convert(make(), "hedgehog").train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.config.attention_probs_dropout_prob = 0.0
    grads = []
    for checkpointing in (False, True):
        if checkpointing:
            model.activation_checkpointing_enable()
        model.zero_grad()
        model(**inputs_of(model)).logits.square().sum().backward()
        grads.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys() >= set(feature_parameters(model))
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad)


@pytest.mark.parametrize("make", [bert, vit], ids=["bert", "vit"])
def test_compiles_without_a_break(make):
    model = convert(make(), "hedgehog")
    batch = inputs_of(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(**batch).logits, logits(model, batch))
    with pytest.raises(LunaError, match="compiled"):
        convert(torch.compile(make(), backend="eager"), "luna")


def test_converting_twice_is_refused():
    with pytest.raises(LunaError, match=r"already runs 't2r'.*revert"):
        convert(convert(bert(), "t2r"), "luna")
    with pytest.raises(LunaError, match="was not converted"):
        revert(bert())
    with pytest.raises(LunaError, match="was not converted"):
        attention_maps(bert(), text())


def test_what_cannot_be_converted_is_refused_with_the_reason():
    t = transformers
    small = {k: v for k, v in SIZE.items() if k != "num_labels"}
    decoder = t.BertConfig(**small, is_decoder=True)
    gpt = t.GPT2Config(n_embd=32, n_head=4, n_layer=1, vocab_size=60, n_positions=16)
    swin = t.SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[1], num_heads=[2])
    cross = t.BertConfig(**small, is_decoder=True, add_cross_attention=True)
    for model, reason in (
        (nn.Linear(3, 3), "holds no attention"),
        (nn.MultiheadAttention(8, 2), "MultiheadAttention holds no attention|cannot be converted"),
        (t.BertLMHeadModel(decoder), "causal decoder"),
        (t.GPT2Model(gpt), r"GPT2Attention"),
        (t.SwinModel(swin), r"SwinAttention|SwinSelfAttention"),
        (t.BertModel(cross), "BertCrossAttention"),
    ):
        before = {n for n, _ in model.named_modules()}
        with pytest.raises(LunaError, match=reason):
            convert(model, "luna", inplace=True)
        assert {n for n, _ in model.named_modules()} == before


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"attention": "lunar"}, "unknown attention 'lunar'; did you mean luna"),
        ({"attention": "luna", "m": 4}, "no option 'm'"),
        ({"attention": "luna", "M": 0}, "luna.M must be at least 1"),
        ({"attention": "hedgehog", "d_out": 3}, "d_out = head_dim = 8"),
        ({"preset": "listng"}, "'luna' has no preset 'listng'; did you mean listing"),
        ({"attention": "t2r", "preset": "listing"}, "'t2r' has no preset 'listing'; known: none"),
        ({"layers": [2]}, "from 0 to 1"),
        ({"layers": []}, "from 0 to 1"),
        ({"layers": "last:3"}, "k in 1..2"),
        ({"layers": "first"}, "'all', 'last:k'"),
        ({"context_dropout": 1.0}, "below 1"),
    ],
)
def test_bad_arguments_leave_the_model_as_it_was(arguments, reason):
    model = bert()
    expected = logits(model, text())
    with pytest.raises(LunaError, match=reason):
        convert(model, inplace=True, **arguments)
    assert describe(model) is None
    assert torch.equal(logits(model, text()), expected)


def test_a_converted_luna_says_which_one_it_is():
    """By what its options are, however they were given; the listing's are LUNA's own defaults."""
    wide, listing = {"M": 16, "L": 1, "nonneg": "exp"}, {"M": 8, "L": 8, "nonneg": True}
    own = {key: p.default for key, p in luna.options("luna").items()}
    assert listing.items() <= own.items()
    for given, options, name in (
        ({}, wide, "wide"),
        ({"preset": "listing"}, listing, "listing"),
        (listing, listing, "listing"),
        ({"preset": "listing", "L": 4}, listing | {"L": 4}, None),
    ):
        block = describe(convert(bert(), "luna", **given))
        assert (block["options"], block["preset"]) == ({"share": "head"} | options, name)
    assert named("luna", wide | {"share": "head"}) == "luna (M=16, L=1, nonneg=exp)"
    assert named("t2r", {"r": 8}) == "t2r"


def test_a_text_longer_than_the_position_table():
    with pytest.raises(LunaError, match=r"41 tokens .* 40 positions"):
        attention_maps(convert(bert(), "t2r"), text((POSITIONS + 1,)))


def test_images_have_no_mask_and_any_batch():
    model = convert(vit(), "luna")
    one, many = images(1), images(3)
    assert torch.isfinite(logits(model, many)).all()
    assert logits(model, one).shape == (1, 3)


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_V19_import_luna_costs_torch_only():
    heavy = "transformers", "safetensors", "tokenizers", "luna.convert", "timm"
    code = f"import luna, sys; print([m for m in {heavy} if m in sys.modules])"
    assert python(code).strip() == "[]"


def test_V19_without_transformers_one_sentence_names_the_extra():
    code = """
import sys; sys.modules["transformers"] = None
import luna
from luna.convert.host import transformers
try: transformers()
except luna.LunaError as error: print(error)
"""
    assert python(code).strip() == (
        "converting a Hugging Face model needs transformers 5: pip install 'luna-lra[convert]'"
    )


def test_linearize_is_convert():
    assert luna.linearize is convert
    with pytest.raises(AttributeError, match="linearise"):
        luna.linearise  # noqa: B018


@pytest.mark.parametrize("name", ["luna", "hedgehog", "t2r"])
def test_sums_of_features_stay_in_float32_under_autocast(name):
    """Pitfall 8: a cast alone does not keep autocast from multiplying in half precision."""
    layer = convert(bert(), name).bert.encoder.layer[0].attention.self.luna_attn
    q, k, v = torch.randn(3, 2, 4, 30, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    expected = layer(q.float(), k.float(), v.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = layer(q, k, v)
    assert torch.equal(got, expected.bfloat16())


@pytest.mark.parametrize("name", ["luna", "t2r", "hedgehog"])
def test_the_floor_of_the_denominator_shrinks_nothing(name):
    """Pitfall 9: features are small at the start; an added constant would show in the row sums."""
    for A in attention_maps(convert(vit(), name, context_dropout=0.0), images()).student:
        sums = A.sum(-1)
        alive = sums > 0  # relu leaves some queries of T2R without weight
        assert float(alive.float().mean()) > 0.5
        torch.testing.assert_close(sums[alive], torch.ones_like(sums[alive]))


def test_evaluation_does_not_depend_on_the_batch():
    """Pitfall 12: channel statistics of a batch sorted by length would be another function."""
    student = convert(bert(), "luna", ch_rms=True)
    student.train()(**text((20, 3, 7)))
    batch = text((9, 9, 9))
    together = logits(student.eval(), batch)
    alone = [logits(student, {key: t[i : i + 1] for key, t in batch.items()}) for i in range(3)]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-6, rtol=0)
