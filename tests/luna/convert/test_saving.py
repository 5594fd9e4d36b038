"""Save and load: exact, checked, and never silently softmax."""

from __future__ import annotations

import importlib.machinery
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

from luna.base import LunaError
from luna.convert import convert, load
from luna.convert.host_config import config_of, without_code

from .kit import bert, logits, text, transformers

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


def without(tensors: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in tensors.items() if key != name}


@pytest.mark.parametrize("name", ["reformer", "performer", "lotformer", "polaformer", "bigbird"])
def test_methods_with_buffers_and_generators(name, tmp_path):
    student = convert(bert(), name, seed=3)
    for _ in range(2):  # generators move in training
        student.train()(**text())
    student.eval().save_pretrained(tmp_path)
    assert torch.equal(logits(load(tmp_path), text()), logits(student, text()))


def test_tensors_that_do_not_fit_are_named(saved):
    _, folder = saved
    where = "bert.encoder.layer.{}.attention.self.luna_layer.attention.map.channels.g"
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for changed, reason in (
        (without(tensors, where.format(1)), f"missing: {where.format(1)}"),
        (without(tensors, "classifier.weight"), r"missing: classifier\.weight"),
        # The layer that stayed softmax:
        (tensors | {where.format(0): torch.zeros(4, 2)}, f"unexpected: {where.format(0)}"),
        (tensors | {where.format(1): torch.zeros(4, 3)}, f"mismatched: {where.format(1)}"),
    ):
        save_file(changed, path, metadata={"format": "pt"})
        with pytest.raises(LunaError, match=reason):
            load(folder)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(LunaError, match="cannot be read"):
        load(folder)


IN_A_FRESH_PROCESS = """
import json, sys

import luna

heavy = "transformers", "safetensors", "tokenizers", "luna.convert", "timm"
seen = {"imported": [name for name in heavy if name in sys.modules]}

sys.modules["transformers"] = None
from luna.convert.host import transformers as needed
try: needed()
except luna.LunaError as error: seen["without"] = str(error)
del sys.modules["transformers"]

from transformers import BertForSequenceClassification
try: BertForSequenceClassification.from_pretrained(sys.argv[1])
except Exception as error: seen["plain"] = str(error)

from luna.convert import load
from tests.luna.convert.kit import logits, text
model = load(sys.argv[1])
seen["logits"] = logits(model, text()).tolist()
print(json.dumps(seen))
"""


def test_a_fresh_process(tmp_path):
    """`import luna` costs torch alone, one sentence names the extra, transformers alone refuses a
    saved model (it would run the finetuned backbone with softmax, and score excellently)."""
    student = moved(convert(bert(), "luna", M=4, L=2))
    student.save_pretrained(tmp_path)
    command = [sys.executable, "-c", IN_A_FRESH_PROCESS, str(tmp_path)]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    report = json.loads(done.stdout)
    assert report["imported"] == []
    assert report["without"].endswith("needs transformers 5: pip install 'luna-lra[convert]'")
    assert 'attn_implementation="luna"' in report["plain"]
    assert report["logits"] == logits(student, text()).tolist()
    # With luna imported the name is known, and the layers have no feature maps.
    plain = transformers.BertForSequenceClassification.from_pretrained(tmp_path)
    with pytest.raises(LunaError, match=r"luna\.convert\.load"):
        logits(plain, text())


def test_shards(tmp_path):
    student = moved(convert(bert(), "t2r"))
    student.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert torch.equal(logits(load(tmp_path), text()), logits(student, text()))


EVIL = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.EvilConfig"}}


@pytest.mark.parametrize(
    ("change", "luna", "reason"),
    [
        (EVIL, {}, "not that of a plain Bert"),
        ({"architectures": ["AutoConfig"]}, {}, "names no architecture"),
        ({"architectures": [["x"]]}, {}, "names no architecture"),
        ({"quantization_config": {"quant_method": "x"}}, {}, "not that of a plain Bert"),
        ({}, {"host_implementation": "someone/kernel"}, "has luna.host_implementation"),
        ({}, {"options": {"M": 10**8}}, "does not fit its tensors"),
        ({}, {"max_len": 10**9}, "does not fit its tensors"),
        ({}, {"options": {"M": 2**20, "share": "head"}}, "describes a model of"),
        ({"vocab_size": 10**9}, {}, "describes a model of"),
        ({"num_hidden_layers": 10**9}, {}, "does not fit its tensors"),
        ({"num_labels": 10**10}, {}, "does not fit its tensors"),
        ({"hidden_size": "x"}, {}, "no model that can be built"),
        ({}, {"layer_numbers": [7]}, "no model that can be built"),
        ({}, {"options": {"unknown": 1}}, "unknown"),
        ({"luna": 3}, {}, "no model that can be built"),
    ],
)
def test_a_crafted_folder_is_one_sentence(saved, change, luna, reason, monkeypatch):
    """Neither its Python nor a kernel of a host is run, and no memory is taken on its word."""
    folder = saved[1]
    ran = folder / "ran"
    (folder / "evil.py").write_text(f"open({str(ran)!r}, 'w')", encoding="utf-8")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["luna"] |= luna
    path.write_text(json.dumps(config | change), encoding="utf-8")
    with pytest.raises(LunaError, match=reason):
        load(folder)
    assert not ran.exists()


KERNEL = "kernels-community/flash-attn2"  # which transformers would download and import


@pytest.mark.parametrize(
    "change",
    [
        {"_attn_implementation": KERNEL},
        {"_attn_implementation_internal": KERNEL},
        {"attn_implementation": KERNEL},
        {"_experts_implementation": KERNEL},
        {"_commit_hash": 3, "_name_or_path": ["x"]},
        {"text_config": {"_attn_implementation": KERNEL}},
        {"auto_map": {"AutoModel": "evil.Evil"}},
    ],
)
def test_a_folder_chooses_no_kernel(saved, change, monkeypatch):
    student, folder = saved
    asked = []
    stand_in = types.ModuleType("kernels")
    stand_in.__spec__ = importlib.machinery.ModuleSpec("kernels", None)
    stand_in.get_kernel = lambda *names, **_: asked.append(names)
    monkeypatch.setitem(sys.modules, "kernels", stand_in)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | change), encoding="utf-8")
    assert torch.equal(logits(load(folder), text()), logits(student, text()))
    assert config_of(folder)._attn_implementation != KERNEL
    assert asked == []


def test_a_part_of_a_host_chooses_no_kernel():
    facts = {"a": 1, "parts": [{"_x": 1, "attn_implementation": KERNEL, "b": {"_y": 2, "c": 3}}]}
    assert without_code(facts) == {"a": 1, "parts": [{"b": {"c": 3}}]}


def test_a_pipe_is_not_waited_for(saved):
    for name in ("model.safetensors", "config.json"):
        (saved[1] / name).unlink()
        os.mkfifo(saved[1] / name)
        with pytest.raises(LunaError, match="no plain file"):
            load(saved[1])


@pytest.mark.parametrize("files", [["x"], {"a": "../model.safetensors"}, {"a": "/x.safetensors"}])
def test_an_index_names_files_of_its_folder(saved, files):
    index = saved[1] / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": files}), encoding="utf-8")
    with pytest.raises(LunaError, match="no safetensors of this folder"):
        load(saved[1])
