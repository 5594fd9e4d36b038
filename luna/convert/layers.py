"""Which modules of a model are softmax attention, and how each of them is built.

Attention of transformers is recognised by its class, timm's by its attributes (timm is never
imported: it needs torchvision). A module of another class that is called attention is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from luna.base import LunaError

_ENCODERS = ("Bert", "Roberta", "XLMRoberta", "Camembert", "Electra", "DistilBert", "ViT", "DeiT")
_DECODERS = ("GPT2", "Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Phi3")
DECODERS = frozenset(f"{name}Attention" for name in _DECODERS)
ENCODERS = frozenset(f"{name}SelfAttention" for name in _ENCODERS) | {
    "ViTAttention",
    "DeiTAttention",
}
# The classes of transformers that a saved model may name.
ARCHITECTURE = re.compile(
    rf"({'|'.join(_ENCODERS + _DECODERS)})(Model|LMHeadModel|DoubleHeadsModel|For[A-Z][A-Za-z]*)"
)
TIMM_ATTRIBUTES = "qkv proj num_heads head_dim scale q_norm k_norm attn_drop proj_drop fused_attn"
SUPPORTED = (
    "the BERT family (BERT, DistilBERT, RoBERTa, MiniLM, ELECTRA), ViT, DeiT and timm's ViT, and "
    "the decoders GPT-2, Llama, Mistral, Qwen2, Qwen3, Gemma and Phi-3"
)


@dataclass(frozen=True)
class Site:
    """One softmax attention of a host model."""

    name: str  # dotted, as in named_modules()
    module: nn.Module
    n_heads: int
    head_dim: int
    dropout: float  # on attention probabilities
    causal: bool  # a decoder's: tokens see none that come later


def find_sites(model: nn.Module) -> list[Site]:
    """List every softmax attention, in the order of `named_modules()`; a LunaError if the model
    cannot be converted."""
    modules = dict(model.named_modules())
    attentions = {n: m for n, m in modules.items() if is_hugging_face(m) or is_timm(m)}
    other = [
        f"{name} ({type(m).__name__})"
        for name, m in modules.items()
        if type(m).__name__.endswith(("Attention", "Attn"))
        and next(m.parameters(), None) is not None
        and not any(_related(name, each) for each in attentions)
    ]
    if other or not attentions:
        reason = f"attention that cannot be converted: {shortened(other)}"
        if not other:
            reason = "no attention that can be converted"
        raise LunaError(f"{type(model).__name__} has {reason}; supported are {SUPPORTED}")
    return [_site(name, module) for name, module in attentions.items()]


def _related(name: str, attention: str) -> bool:
    return (  # one of two modules is the other, or inside it
        not name or f"{name}.".startswith(f"{attention}.") or f"{attention}.".startswith(f"{name}.")
    )


def is_hugging_face(module: nn.Module) -> bool:
    return type(module).__name__ in ENCODERS | DECODERS


def is_timm(module: nn.Module) -> bool:
    # The rotary, window and differential attentions of timm have other class names.
    attributes = TIMM_ATTRIBUTES.split()
    return type(module).__name__ == "Attention" and all(hasattr(module, a) for a in attributes)


def position_limit(model: nn.Module) -> int:
    """Return the longest sequence that the host has positions for."""
    for name, module in model.named_modules():
        if name.endswith(("position_embeddings", "wpe")) and isinstance(module, nn.Embedding):
            # RoBERTa's positions start after that of padding.
            first = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - first
    for name, parameter in model.named_parameters():
        if name.endswith(("position_embeddings", "pos_embed")) and parameter.ndim == 3:
            return parameter.shape[1]  # (1, n, width)
    # Rotary positions have no table, but a promise.
    if any(type(module).__name__ in DECODERS for module in model.modules()):
        return model.config.max_position_embeddings  # type: ignore[union-attr, return-value]
    raise LunaError(
        f"{type(model).__name__} has no position table that limits its inputs: give max_len=..."
    )


def shortened(names: Iterable[str]) -> str:
    """Name the first three, and how many there are beyond."""
    every = list(names)
    return ", ".join(every[:3]) + (f" and {len(every) - 3} more" if len(every) > 3 else "")


def _site(name: str, module: nn.Module) -> Site:
    """Describe one attention; a LunaError for what a supported class may have beside it."""
    config = getattr(module, "config", None)
    decoder = type(module).__name__ in DECODERS
    causal = getattr(module, "is_causal", False) or getattr(module, "is_decoder", False)
    window = getattr(config, "sliding_window", None) if causal else None
    if getattr(config, "add_cross_attention", False):
        raise LunaError(f"{name} is in a model with cross-attention, which cannot be converted")
    if decoder != bool(causal and getattr(config, "is_causal", True)):
        here, only = ("bidirectional", "causal") if decoder else ("causal", "bidirectional")
        raise LunaError(
            f"{name} is {here} here, and {type(module).__name__} can be converted as {only} only"
        )
    if window is not None:
        raise LunaError(
            f"{name} sees a window of {window} tokens, converted attention sees all of them: load "
            "the model with sliding_window=None, which changes nothing in texts as short as that"
        )
    # Read from the module: hidden_size / heads is not the head width of every model.
    n_heads = _first(module, "num_attention_heads", "n_heads", "num_heads")
    head_dim = _first(module, "attention_head_size", "head_dim")
    rate: Any = _first(module, "attention_dropout", "attn_drop", "attn_dropout", "dropout")
    return Site(name, module, n_heads, head_dim, float(getattr(rate, "p", rate)), decoder)


def _first(module: nn.Module, *names: str) -> Any:
    """The first of these that the module has, or else its config (Llama's number of heads)."""
    owners = (module, getattr(module, "config", None))
    return next(getattr(owner, n) for owner in owners for n in names if hasattr(owner, n))
