"""The models that `lra bench convert` measures: random weights, sizes of real ones, positions for
any length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from luna.convert.host import transformers

PATCH = 16
POSITIONS = 512  # of BERT; the table grows where a length needs it


@dataclass(frozen=True, kw_only=True)
class Geometry:
    host: Literal["bert", "vit"]
    layers: int
    heads: int
    width: int
    vocab: int = 30_522

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def told(self) -> str:
        return f"{self.layers} layers, {self.heads} heads of {self.head_dim}, {self.width} wide"


GEOMETRIES = {
    "minilm": Geometry(host="bert", layers=6, heads=12, width=384),
    "bert-base": Geometry(host="bert", layers=12, heads=12, width=768),
    "vit-b16-like": Geometry(host="vit", layers=12, heads=12, width=768),
}


def build(geometry: Geometry, n: int) -> nn.Module:
    """With softmax attention, in torch's fused kernel."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": geometry.width,
        "num_hidden_layers": geometry.layers,
        "num_attention_heads": geometry.heads,
        "intermediate_size": 4 * geometry.width,
        "num_labels": 2,
        # Converted attention has no probabilities to drop; softmax that drops some is no fused
        # kernel on a CPU, and takes memory for n x n of them.
        "attention_probs_dropout_prob": 0.0,
        "attn_implementation": "sdpa",
    }
    return HOSTS[geometry.host][0](geometry, sizes, n)


def batch(geometry: Geometry, size: int, n: int, device: torch.device) -> dict[str, Tensor]:
    """Full length, nothing padded, with labels."""
    torch.manual_seed(1)
    inputs = HOSTS[geometry.host][1](geometry, size, n)
    inputs["labels"] = torch.randint(2, (size,))
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def dense_flops(geometry: Geometry, n: int) -> int:
    """Of a forward without attention: four projections and an MLP of 4 widths in each layer."""
    return geometry.layers * n * 2 * 12 * geometry.width**2


def _bert(geometry: Geometry, sizes: dict[str, Any], n: int) -> nn.Module:
    library = transformers()
    positions = max(n, POSITIONS)
    config = library.BertConfig(
        **sizes, vocab_size=geometry.vocab, max_position_embeddings=positions
    )
    return library.BertForSequenceClassification(config)


def _tokens(geometry: Geometry, size: int, n: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(1, geometry.vocab, (size, n))}


def _vit(geometry: Geometry, sizes: dict[str, Any], n: int) -> nn.Module:
    library = transformers()
    # One row of patches and CLS: any n, which squares would not give.
    config = library.ViTConfig(**sizes, image_size=(PATCH, PATCH * (n - 1)), patch_size=PATCH)
    return library.ViTForImageClassification(config)


def _pixels(geometry: Geometry, size: int, n: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(size, 3, PATCH, PATCH * (n - 1))}


Build = Callable[[Geometry, dict[str, Any], int], nn.Module]
Inputs = Callable[[Geometry, int, int], dict[str, Tensor]]
HOSTS: dict[str, tuple[Build, Inputs]] = {"bert": (_bert, _tokens), "vit": (_vit, _pixels)}
