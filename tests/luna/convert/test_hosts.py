"""Every host of conversion: swapped and reverted, distilled, finetuned, saved and loaded."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from luna.base import LunaError
from luna.convert import (
    convert,
    describe,
    distill,
    feature_parameters,
    finetune,
    load,
    load_adapter,
    revert,
    save_adapter,
)  # fmt: skip

from .kit import GREEDY, HOSTS, decoder, inputs_of, logits

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
    assert all(".luna_attn." in name for name in new)
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
    assert all((p.grad is None) == (n not in before or ".luna_attn." not in n)
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
    save_adapter(student, tmp_path / "maps")
    assert all(".luna_attn." in key for key in load_file(tmp_path / "maps"))
    with torch.no_grad():
        student.base_model.apply(lambda m: [p.mul_(1.1) for p in m.parameters(recurse=False)])
    student.save_pretrained(tmp_path / "model")
    again, batch = load(tmp_path / "model"), inputs_of(teacher)
    assert torch.equal(logits(again, batch), logits(student, batch))
    assert describe(again) == describe(student)
    assert again.state_dict().keys() == student.state_dict().keys()
    if host in ("gpt2", "llama"):
        assert torch.equal(again.generate(**batch, **GREEDY), student.generate(**batch, **GREEDY))
    from_maps = load_adapter(teacher, tmp_path / "maps")
    assert describe(from_maps) == describe(student)
    assert describe(teacher) is None


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
    with pytest.raises(LunaError, match=r"config\.json is missing"):
        load(tmp_path / "nowhere")
