"""Tiny models from configs, and the inputs the tests share."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from luna.convert import tasks
from luna.convert.recipe import ConversionRecipe
from luna.convert.swap import feature_maps
from luna.convert.tasks.images import Images

transformers = pytest.importorskip("transformers")

H, D_HEAD, VOCAB, POSITIONS = 4, 8, 60, 40
SIZES = {
    "hidden_size": H * D_HEAD,
    "num_hidden_layers": 2,
    "num_attention_heads": H,
    "intermediate_size": 48,
}
TEXT = SIZES | {"vocab_size": VOCAB, "max_position_embeddings": POSITIONS, "num_labels": 3}
IMAGE = SIZES | {"image_size": 16, "patch_size": 4, "num_labels": 3}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GPT2 = {"n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": VOCAB, "n_positions": 64} | SPECIAL
# Each head of keys serves two of queries.
DECODER = TEXT | SPECIAL | {"num_key_value_heads": 2, "max_position_embeddings": 64}
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForSequenceClassification", TEXT),
    "roberta": ("RobertaForSequenceClassification", TEXT),
    "distilbert": ("DistilBertForSequenceClassification", TEXT | {"hidden_dim": 48}),
    "vit": ("ViTForImageClassification", IMAGE),
    "deit": ("DeiTForImageClassification", IMAGE),
}
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "llama": ("LlamaForCausalLM", DECODER),
    "mistral": ("MistralForCausalLM", DECODER | {"sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", DECODER),
    "qwen3": ("Qwen3ForCausalLM", DECODER | {"head_dim": 16}),
    "gemma": ("GemmaForCausalLM", DECODER | {"head_dim": 16}),
    "phi3": ("Phi3ForCausalLM", DECODER),
}
HOSTS = ENCODERS | DECODERS
GREEDY = {"max_new_tokens": 12, "do_sample": False}


def host(name: str, **changes: Any) -> Any:
    """A model of random weights whose attention maps are far from uniform."""
    kind, sizes = HOSTS[name]
    cls = getattr(transformers, kind)
    torch.manual_seed(0)
    model = cls(cls.config_class(**sizes | changes))
    with torch.no_grad():
        for parameter, p in model.named_parameters():
            if p.ndim > 1:
                queries = name in ENCODERS and ("query" in parameter or "q_" in parameter)
                p.mul_((4 if name in ENCODERS else 6) * (2 if queries else 1))
    return model.eval()


bert, vit = partial(host, "bert"), partial(host, "vit")


def prompts() -> dict[str, Tensor]:
    """Three of 12, 11 and 7 tokens, padded on the left as `generate` wants them."""
    ids = torch.randint(3, VOCAB, (3, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(12) >= torch.tensor([0, 1, 5])[:, None]
    return {"input_ids": ids * mask, "attention_mask": mask.long()}


def text(lengths: tuple[int, ...] = (5, 12, 9), *, seed: int = 1) -> dict[str, Tensor]:
    """Sentences of these lengths, padded together."""
    g = torch.Generator().manual_seed(seed)
    n = max(lengths)
    ids = torch.randint(2, VOCAB, (len(lengths), n), generator=g)
    mask = torch.arange(n) < torch.tensor(lengths)[:, None]
    return {"input_ids": ids.masked_fill(~mask, 1), "attention_mask": mask.long()}


def images(b: int = 3, *, seed: int = 1) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"pixel_values": torch.randn(b, 3, 16, 16, generator=g)}


def inputs_of(model: nn.Module) -> dict[str, Tensor]:
    if hasattr(model.config, "image_size"):
        return images()
    return prompts() if model.can_generate() else text()


def logits(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return model(**batch).logits


def comes_again(b: int, *, n: int = 8, seed: int = 0) -> dict[str, Tensor]:
    """A task that needs attention: does the first token come again?"""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 13, (b, n), generator=g)
    ids[:, 1:] += (ids[:, 1:] == ids[:, :1]).long()
    labels = torch.randint(0, 2, (b,), generator=g)
    where = torch.randint(1, n, (b, 1), generator=g)
    again = ids.scatter(1, where, ids[:, :1])
    return {"input_ids": torch.where(labels[:, None] == 1, again, ids), "labels": labels}


def paint(root: Path, *, train: int = 12, val: int = 6) -> None:
    """An image folder to learn from: three colours, lighter and darker, of every shape and kind."""
    rng = np.random.default_rng(0)
    for split, n in (("train", train), ("val", val)):
        for label, name in enumerate(("blue", "green", "red")):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(n):
                height, width = rng.integers(12, 30, 2)
                values = rng.integers(0, 90, (height, width, 3))
                values[..., 2 - label] += 110
                kind = ".jpg" if i % 4 == 0 else ".PNG"
                Image.fromarray(values.astype(np.uint8)).save(folder / f"{i}{kind}")


# What a checkpoint of images of 16 x 16 says of them.
PREPROCESSOR = {
    "do_normalize": True,
    "do_resize": True,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.5, 0.25, 0.2],
    "resample": 2,
    "size": {"height": 16, "width": 16},
    "image_processor_type": "ViTImageProcessor",
}


def processor(where: Path, config: dict[str, Any] = PREPROCESSOR) -> Any:
    """Write what a checkpoint says of its images, and read it."""
    (where / "preprocessor_config.json").write_text(json.dumps(config), encoding="utf-8")
    return tasks.get("image_folder").processor(str(where))


def opened(folder: Path, plain: Any, *, seed: int = 0, **numbers: Any) -> Images:
    """The folder as a run with these numbers of the recipe sees it."""
    return Images(tasks.get("image_folder"), folder, plain, ConversionRecipe(**numbers), seed)


def checkpoint(folder: Path, words: tuple[str, ...] = ("good", "bad", "film")) -> None:
    """A BERT without a head, of one small layer, with a tokenizer that knows these words."""
    folder.mkdir(exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    tokenizer = transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt"))
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "max_position_embeddings": 16}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": len(vocabulary)}
    transformers.BertModel(transformers.BertConfig(**sizes, **layers)).save_pretrained(folder)


def accuracy(model: nn.Module) -> dict[str, float]:
    """On held-out examples of `comes_again`."""
    batch = comes_again(128, seed=10**6)
    right = logits(model, {"input_ids": batch["input_ids"]}).argmax(-1) == batch["labels"]
    return {"accuracy": float(right.float().mean())}


def kill(student: nn.Module, layer: int, head: int) -> None:
    """Make T2R's features of one head zero for every input."""
    phi = list(feature_maps(student).values())[layer]
    with torch.no_grad():
        phi.map.weight[head] = 0
        phi.map.bias[head] = -1


class Interrupted(Exception):
    """Raised where a test stops a run."""
