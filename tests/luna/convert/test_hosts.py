"""Every host of conversion: swapped and reverted, distilled, finetuned, saved, loaded, refused."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from luna.base import LunaError
from luna.convert import (
    convert,
    describe,
    distill,
    feature_parameters,
    finetune,
    load,
    revert,
)
from luna.convert.running import own_loss

from .kit import (
    DECODERS,
    GREEDY,
    HOSTS,
    POSITIONS,
    TEXT,
    bert,
    comes_again,
    host,
    inputs_of,
    logits,
    text,
    transformers,
)

THREE, METHODS = ("bert", "vit", "gpt2"), ("luna", "hedgehog", "t2r", "softmax")


def changed(model: Any, before: dict[str, Tensor]) -> Iterator[str]:
    return (name for name, t in model.state_dict().items() if not torch.equal(t, before[name]))


@pytest.mark.parametrize("name", HOSTS)
def test_conversion_to_softmax_is_the_identity(name):
    """The hidden states of real tokens stay, and what is generated."""

    @torch.no_grad()
    def hidden(model: nn.Module) -> Tensor:
        states = model.base_model(**batch).last_hidden_state
        return states[batch["attention_mask"] == 1] if "attention_mask" in batch else states

    model = host(name)
    batch = inputs_of(model)
    for implementation in ("sdpa", "eager"):
        model.set_attn_implementation(implementation)
        student = convert(model, "softmax")
        torch.testing.assert_close(hidden(student), hidden(model), atol=1e-5, rtol=1e-5)
    for beams in (1, 3) if name in DECODERS else ():
        expected = model.generate(**batch, num_beams=beams, **GREEDY)
        assert torch.equal(student.generate(**batch, num_beams=beams, **GREEDY), expected)
    assert (hidden(convert(model, "linear")) - hidden(model)).abs().max() > 0.01


@pytest.mark.parametrize("name", HOSTS)
def test_converting_and_reverting_is_exact(name):
    model = host(name)
    batch, before = inputs_of(model), copy.deepcopy(model.state_dict())
    expected, config = logits(model, batch), model.config.to_dict()
    student = convert(model, "luna")
    assert not torch.equal(logits(student, batch), expected)
    assert torch.equal(logits(model, batch), expected)  # a new object: the model is untouched
    new = student.state_dict().keys() - before.keys()
    assert new == feature_parameters(student).keys()
    assert all(".luna_layer.attention." in parameter for parameter in new)
    assert not list(changed(revert(student), before))
    assert convert(model, "t2r", inplace=True) is model
    assert not torch.equal(logits(model, batch), expected)
    assert revert(model, inplace=True) is model
    assert torch.equal(logits(model, batch), expected)
    assert (describe(model), model.config.to_dict()) == (None, config)


@pytest.mark.parametrize("name", THREE)
@pytest.mark.parametrize("method", METHODS[:3])
def test_stage_1_moves_the_feature_maps_alone_and_stage_2_all(name, method):
    student = convert(host(name), method)
    batch, before = inputs_of(student), copy.deepcopy(student.state_dict())
    flags = [p.requires_grad for p in student.parameters()]
    report = distill(student, [batch], steps=20)
    assert all(report.after.layers()[layer] < kl for layer, kl in report.before.layers().items())
    assert set(changed(student, before)) == feature_parameters(student).keys()
    assert all(
        (p.grad is None) == (n not in before or ".luna_layer." not in n)
        for n, p in student.named_parameters()
    )
    assert [p.requires_grad for p in student.parameters()] == flags
    assert describe(student)["stage"] == "stage1"

    def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        return model(**batch).logits.square().mean()

    before = copy.deepcopy(student.state_dict())
    finetune(
        student,
        lambda epoch: [batch],
        lambda model: {"score": 1.0},
        metric="score",
        lr=1e-3,
        epochs=1,
        loss=loss,
    )
    still = before.keys() - set(changed(student, before))
    assert all("bias" in parameter or "embed" in parameter for parameter in still), still
    assert describe(student)["stage"] == "finetuned"


@pytest.mark.parametrize(
    ("name", "method"), [(n, m) for n in HOSTS for m in METHODS if n in THREE or m == "luna"]
)
def test_saving_and_loading_is_exact(name, method, tmp_path):
    teacher = host(name)
    student = convert(teacher, method, layers=[1])
    with torch.no_grad():
        for p in feature_parameters(student).values():
            p.add_(0.05 * torch.randn_like(p))
        student.base_model.apply(lambda m: [p.mul_(1.1) for p in m.parameters(recurse=False)])
    student.save_pretrained(tmp_path / "model")
    again, batch = load(tmp_path / "model"), inputs_of(teacher)
    assert torch.equal(logits(again, batch), logits(student, batch))
    assert describe(again) == describe(student)
    assert again.state_dict().keys() == student.state_dict().keys()
    if name in DECODERS:
        assert torch.equal(again.generate(**batch, **GREEDY), student.generate(**batch, **GREEDY))
    assert revert(again).config._attn_implementation == teacher.config._attn_implementation


@pytest.mark.parametrize(
    ("name", "limit"),
    [("bert", POSITIONS), ("roberta", POSITIONS - 2), ("vit", 17), ("deit", 18), ("llama", 64)],
)  # RoBERTa's positions start after that of padding
def test_the_longest_input_is_the_hosts(name, limit):
    assert describe(convert(host(name), "t2r"))["max_len"] == limit


# ---------------------------------------------------------------------- refusals

PLAIN = {key: value for key, value in TEXT.items() if key != "num_labels"}
REFUSED = {
    r"has no attention": lambda t: nn.Linear(3, 3),
    r"is causal here, and BertSelfAttention": lambda t: t.BertLMHeadModel(
        t.BertConfig(**PLAIN, is_decoder=True)
    ),
    r"GPTNeoXAttention": lambda t: t.GPTNeoXModel(t.GPTNeoXConfig(**PLAIN)),
    r"SwinAttention|SwinSelfAttention": lambda t: t.SwinModel(
        t.SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[1], num_heads=[2])
    ),
    r"BertCrossAttention": lambda t: t.BertModel(
        t.BertConfig(**PLAIN, is_decoder=True, add_cross_attention=True)
    ),
    r"in a model with cross-attention": lambda t: host("gpt2", add_cross_attention=True),
    r"a window of 16 tokens": lambda t: host("mistral", sliding_window=16),
    r"is bidirectional here": lambda t: host("llama", is_causal=False),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_converted_is_refused_with_the_reason(reason):
    model = REFUSED[reason](transformers)
    before = [name for name, _ in model.named_modules()]
    with pytest.raises(LunaError, match=reason):
        convert(model, "linear", inplace=True)
    assert [name for name, _ in model.named_modules()] == before
    assert describe(model) is None


def test_no_model_at_all_and_batches_that_a_model_cannot_take():
    with pytest.raises(LunaError, match=r"wants a loaded model, not 'bert-base-uncased'"):
        convert("bert-base-uncased")
    with pytest.raises(LunaError, match=r"41 tokens .* 40 positions"):
        own_loss(bert(), text((POSITIONS + 1,)))
    with pytest.raises(LunaError, match="no loss"):
        own_loss(bert(num_labels=2), {"input_ids": comes_again(4)["input_ids"]})
