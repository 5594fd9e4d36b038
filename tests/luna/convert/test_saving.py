"""Save and load: exact, checked, and never softmax in silence (V11, V12, V20)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from luna.base import LunaError
from luna.convert import (
    convert,
    describe,
    feature_parameters,
    load,
    load_adapter,
    revert,
    save_adapter,
)

from .kit import HOSTS, bert, inputs_of, logits, text, transformers, vit

load_file = pytest.importorskip("safetensors.torch").load_file
save_file = pytest.importorskip("safetensors.torch").save_file


def moved(model):
    """Every parameter away from its initialisation, so that a tensor left out is noticed."""
    torch.manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return model


@pytest.fixture
def saved(tmp_path):
    student = moved(convert(bert(), "luna", M=4, L=2, layers=[1], seed=5))
    student.save_pretrained(tmp_path)
    return student, tmp_path


def edit_weights(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("make", HOSTS.values(), ids=HOSTS)
@pytest.mark.parametrize("name", ["luna", "hedgehog", "t2r", "softmax"])
def test_V11_save_and_load_are_exact(make, name, tmp_path):
    student = moved(convert(make(), name))
    student.save_pretrained(tmp_path)
    again = load(tmp_path)
    batch = inputs_of(student)
    assert torch.equal(logits(again, batch), logits(student, batch))
    assert describe(again) == describe(student)
    assert again.state_dict().keys() == student.state_dict().keys()
    assert {p.name for p in tmp_path.iterdir()} == {"config.json", "model.safetensors"}


@pytest.mark.parametrize("name", ["reformer", "performer", "lotformer", "polaformer", "bigbird"])
def test_V11_methods_with_buffers_and_generators(name, tmp_path):
    student = convert(bert(), name, seed=3)
    for _ in range(2):  # generators move in training
        student.train()(**text())
    student.eval().save_pretrained(tmp_path)
    assert torch.equal(logits(load(tmp_path), text()), logits(student, text()))


def test_V11_in_a_fresh_process(saved):
    student, folder = saved
    code = f"""
import torch
from luna.convert import load
from tests.luna.convert.kit import logits, text
model = load({str(folder)!r})
assert model.config._attn_implementation == "luna"
print(logits(model, text()).tolist())
"""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert json.loads(done.stdout) == logits(student, text()).tolist()


def test_V11_a_missing_feature_tensor_is_named(saved):
    _, folder = saved
    name = "bert.encoder.layer.1.attention.self.luna_attn.map.channels.e"
    edit_weights(folder, lambda tensors: tensors.pop(name))
    with pytest.raises(LunaError, match=f"missing: {name}"):
        load(folder)


def test_V11_a_missing_host_tensor_is_named(saved):
    _, folder = saved
    edit_weights(folder, lambda tensors: tensors.pop("classifier.weight"))
    with pytest.raises(LunaError, match=r"missing: classifier\.weight"):
        load(folder)


def test_V11_an_unexpected_or_misshapen_tensor_is_named(saved):
    _, folder = saved
    where = "bert.encoder.layer.{}.attention.self.luna_attn.map.channels.g"
    original = load_file(folder / "model.safetensors")
    extra = where.format(0)  # the layer that stayed softmax
    edit_weights(folder, lambda tensors: tensors.update({extra: torch.zeros(4, 2)}))
    with pytest.raises(LunaError, match=f"unexpected: {extra}"):
        load(folder)
    save_file(original | {where.format(1): torch.zeros(4, 3)}, folder / "model.safetensors")
    with pytest.raises(LunaError, match=f"misshapen: {where.format(1)}"):
        load(folder)


def test_V11_truncated_weights(saved):
    _, folder = saved
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(LunaError, match="cannot be read"):
        load(folder)


def test_V11_a_plain_reload_raises(saved):
    """Pitfall 2: it would be the finetuned backbone with softmax, and score excellently."""
    _, folder = saved
    cls = transformers.BertForSequenceClassification
    code = f"""
import transformers
transformers.BertForSequenceClassification.from_pretrained({str(folder)!r})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert 'attn_implementation="luna"' in done.stderr
    # With luna imported the name is known, and the layers have no feature maps.
    with pytest.raises(LunaError, match=r"luna\.convert\.load"):
        logits(cls.from_pretrained(folder), text())


def test_V11_reverted_models_are_plain_again(tmp_path):
    teacher = bert()
    revert(convert(teacher, "luna")).save_pretrained(tmp_path)
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(again, text()), logits(teacher, text()))
    with pytest.raises(LunaError, match="no converted model"):
        load(tmp_path)
    with pytest.raises(LunaError, match=r"there is no .*config\.json"):
        load(tmp_path / "nowhere")


def test_V11_shards(tmp_path):
    student = moved(convert(bert(), "t2r"))
    student.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert torch.equal(logits(load(tmp_path), text()), logits(student, text()))


def test_V11_half_precision_hosts_keep_float32_feature_maps(tmp_path):
    student = moved(convert(bert().to(torch.bfloat16), "hedgehog"))
    student.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert again.classifier.weight.dtype == torch.bfloat16
    assert {p.dtype for p in feature_parameters(again).values()} == {torch.float32}
    assert torch.equal(logits(again, text()), logits(student, text()))


def test_V12_converting_a_loaded_checkpoint_keeps_the_initialisation(tmp_path):
    """from_pretrained builds on the meta device: maps of a constructor come out as garbage."""
    bert().save_pretrained(tmp_path)
    model = transformers.BertForSequenceClassification.from_pretrained(tmp_path)
    student = convert(model, "hedgehog")
    for name, p in feature_parameters(student).items():
        expected = torch.eye(8).expand(4, 8, 8) if name.endswith("weight") else torch.zeros(4, 8)
        assert torch.equal(p, expected), name
    luna = feature_parameters(convert(model, "luna"))
    weight = luna["bert.encoder.layer.0.attention.self.luna_attn.map.projections.weight"]
    assert 0.6 < float(weight.detach().std()) * 8**0.5 < 1.4  # N(0, 1) / sqrt(d)


@pytest.mark.parametrize("name", ["luna", "hedgehog"])
def test_V20_vit_on_disk_names_round_trip(name, tmp_path):
    student = moved(convert(vit(), name, layers=[1]))
    student.save_pretrained(tmp_path)
    keys = load_file(tmp_path / "model.safetensors").keys()
    assert "vit.encoder.layer.1.attention.attention.query.weight" in keys
    assert any(k.startswith("vit.encoder.layer.1.attention.luna_attn.") for k in keys)
    again = load(tmp_path)
    assert torch.equal(logits(again, inputs_of(again)), logits(student, inputs_of(student)))
    assert again.state_dict().keys() == student.state_dict().keys()


@pytest.mark.parametrize("make", [bert, vit], ids=["bert", "vit"])
def test_adapter_holds_the_feature_maps_alone(make, tmp_path):
    teacher = make()
    student = convert(teacher, "luna", layers="last:1")
    with torch.no_grad():
        for p in feature_parameters(student).values():
            p.add_(0.1)
    path = tmp_path / "luna.safetensors"
    save_adapter(student, path)
    assert all(".luna_attn." in key for key in load_file(path))
    batch = inputs_of(teacher)
    again = load_adapter(teacher, path)
    assert torch.equal(logits(again, batch), logits(student, batch))
    assert describe(again) == describe(student)
    assert describe(teacher) is None


def test_adapter_fits_its_own_teacher_only(tmp_path):
    student = convert(bert(), "t2r")
    path = tmp_path / "t2r.safetensors"
    save_adapter(student, path)
    with pytest.raises(LunaError, match="made for another model"):
        load_adapter(moved(bert()), path)
    with pytest.raises(LunaError, match="host's weights have changed"):
        save_adapter(moved(student), path)
    save_file({"a": torch.ones(1)}, path)
    with pytest.raises(LunaError, match="not a file of"):
        load_adapter(bert(), path)
    path.write_bytes(b"torn")
    with pytest.raises(LunaError, match="cannot be read"):
        load_adapter(bert(), path)
