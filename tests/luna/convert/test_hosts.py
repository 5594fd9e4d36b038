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
)  # fmt: skip
from luna.convert.swap import own_loss

from .kit import (
    GREEDY,
    HOSTS,
    POSITIONS,
    SIZE,
    bert,
    comes_again,
    decoder,
    inputs_of,
    logits,
    text,
    transformers,
)

ALL = HOSTS | {"gpt2": decoder, "llama": lambda: decoder("Llama")}
METHODS = ("luna", "hedgehog", "t2r", "softmax")


def changed(model: Any, before: dict[str, Tensor]) -> Iterator[str]:
    return (name for name, t in model.state_dict().items() if not torch.equal(t, before[name]))


@pytest.mark.parametrize("host", ALL)
def test_converting_and_reverting_is_exact(host):
    model = ALL[host]()
    batch, before = inputs_of(model), copy.deepcopy(model.state_dict())
    expected, config = logits(model, batch), model.config.to_dict()
    student = convert(model, "luna")
    assert not torch.equal(logits(student, batch), expected)
    assert torch.equal(logits(model, batch), expected)  # a new object: the model is untouched
    new = student.state_dict().keys() - before.keys()
    assert new == feature_parameters(student).keys()
    assert all(".luna_layer.attention." in name for name in new)
    assert not list(changed(revert(student), before))
    assert convert(model, "t2r", inplace=True) is model
    assert not torch.equal(logits(model, batch), expected)
    assert revert(model, inplace=True) is model
    assert torch.equal(logits(model, batch), expected)
    assert (describe(model), model.config.to_dict()) == (None, config)


@pytest.mark.parametrize("host", ["bert", "vit", "gpt2"])
@pytest.mark.parametrize("name", METHODS[:3])
def test_stage_1_moves_the_feature_maps_alone_and_stage_2_all(host, name):
    student = convert(ALL[host](), name)
    batch, before = inputs_of(student), copy.deepcopy(student.state_dict())
    flags = [p.requires_grad for p in student.parameters()]
    report = distill(student, [batch], steps=40)
    assert all(report.after.layers()[layer] < kl for layer, kl in report.before.layers().items())
    assert set(changed(student, before)) == feature_parameters(student).keys()
    assert all((p.grad is None) == (n not in before or ".luna_layer." not in n)
               for n, p in student.named_parameters())  # fmt: skip
    assert [p.requires_grad for p in student.parameters()] == flags
    assert describe(student)["stage"] == "stage1"

    def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        return model(**batch).logits.square().mean()

    before = copy.deepcopy(student.state_dict())
    finetune(student, lambda epoch: [batch], lambda model: {"score": 1.0}, metric="score",
             lr=1e-3, epochs=1, loss=loss)  # fmt: skip
    still = before.keys() - set(changed(student, before))
    assert all("bias" in name or "embed" in name for name in still), still
    assert describe(student)["stage"] == "finetuned"


@pytest.mark.parametrize("host", ALL)
@pytest.mark.parametrize("name", METHODS)
def test_saving_and_loading_is_exact(host, name, tmp_path):
    teacher = ALL[host]()
    student = convert(teacher, name, layers=[1])
    with torch.no_grad():
        for p in feature_parameters(student).values():
            p.add_(0.05 * torch.randn_like(p))
        student.base_model.apply(lambda m: [p.mul_(1.1) for p in m.parameters(recurse=False)])
    student.save_pretrained(tmp_path / "model")
    again, batch = load(tmp_path / "model"), inputs_of(teacher)
    assert torch.equal(logits(again, batch), logits(student, batch))
    assert describe(again) == describe(student)
    assert again.state_dict().keys() == student.state_dict().keys()
    if host in ("gpt2", "llama"):
        assert torch.equal(again.generate(**batch, **GREEDY), student.generate(**batch, **GREEDY))


def test_half_precision_and_reverted_models_on_disk(tmp_path):
    student = convert(HOSTS["bert"]().to(torch.bfloat16), "hedgehog")
    student.save_pretrained(tmp_path)
    again, batch = load(tmp_path), inputs_of(student)
    assert again.classifier.weight.dtype == torch.bfloat16
    assert {p.dtype for p in feature_parameters(again).values()} == {torch.float32}
    assert torch.equal(logits(again, batch), logits(student, batch))
    revert(again).save_pretrained(tmp_path / "plain")
    with pytest.raises(LunaError, match="not a converted model"):
        load(tmp_path / "plain")
    with pytest.raises(LunaError, match=r"config\.json cannot be read"):
        load(tmp_path / "nowhere")


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
    causal = t.BertConfig(**small, is_decoder=True)
    swin = t.SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[1], num_heads=[2])
    cross = t.BertConfig(**small, is_decoder=True, add_cross_attention=True)
    for model, reason in (
        (nn.Linear(3, 3), "has no attention"),
        (t.BertLMHeadModel(causal), "is causal here, and BertSelfAttention"),
        (t.GPTNeoXModel(t.GPTNeoXConfig(**small)), r"GPTNeoXAttention"),
        (t.SwinModel(swin), r"SwinAttention|SwinSelfAttention"),
        (t.BertModel(cross), "BertCrossAttention"),
    ):
        before = {n for n, _ in model.named_modules()}
        with pytest.raises(LunaError, match=reason):
            convert(model, "luna", inplace=True)
        assert {n for n, _ in model.named_modules()} == before
    with pytest.raises(LunaError, match=r"wants a loaded model, not 'bert-base-uncased'"):
        convert("bert-base-uncased")


def test_batches_that_a_model_cannot_take():
    with pytest.raises(LunaError, match=r"41 tokens .* 40 positions"):
        own_loss(bert(), text((POSITIONS + 1,)))
    with pytest.raises(LunaError, match="no loss"):
        own_loss(bert(num_labels=2), {"input_ids": comes_again(4)["input_ids"]})
