"""Which modules of a model are softmax attention, and how each of them is built.

Attention of transformers is recognised by its class, timm's by its attributes (timm is never
imported: it needs torchvision). A module of another class that is called attention is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from luna.base import LunaError

HUGGING_FACE = frozenset(
    {
        "BertSelfAttention",
        "RobertaSelfAttention",
        "XLMRobertaSelfAttention",
        "CamembertSelfAttention",
        "ElectraSelfAttention",
        "DistilBertSelfAttention",
        "ViTAttention",
        "DeiTAttention",
    }
)
_DECODERS = ("GPT2", "Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Phi3")
_ENCODERS = ("Bert", "Roberta", "XLMRoberta", "Camembert", "Electra", "DistilBert", "ViT", "DeiT")
DECODERS = frozenset(f"{name}Attention" for name in _DECODERS)
# The classes of transformers that a saved model may name.
ARCHITECTURE = re.compile(
    rf"({'|'.join(_ENCODERS + _DECODERS)})(Model|LMHeadModel|DoubleHeadsModel|For[A-Z][A-Za-z]*)"
)
TIMM_ATTRIBUTES = (
    "qkv",
    "proj",
    "num_heads",
    "head_dim",
    "scale",
    "q_norm",
    "k_norm",
    "attn_drop",
    "proj_drop",
    "fused_attn",
)
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
    """Every softmax attention, in the order of `named_modules()`; a LunaError if the model cannot
    be converted."""
    modules = dict(model.named_modules())
    attentions = {n: m for n, m in modules.items() if is_hugging_face(m) or is_timm(m)}
    other = _other_attention(modules, set(attentions))
    if other or not attentions:
        reason = (
            f"attention that cannot be converted: {other}"
            if other
            else ("no attention that can be converted")
        )
        raise LunaError(f"{type(model).__name__} has {reason}; supported are {SUPPORTED}")
    for name, module in attentions.items():
        _check_layout(name, module)
    return [_site(name, module) for name, module in attentions.items()]


def is_hugging_face(module: nn.Module) -> bool:
    return type(module).__name__ in HUGGING_FACE | DECODERS


def is_decoder(module: nn.Module) -> bool:
    return type(module).__name__ in DECODERS


def is_timm(module: nn.Module) -> bool:
    # The rotary, window and differential attentions of timm have other class names.
    return type(module).__name__ == "Attention" and all(hasattr(module, a) for a in TIMM_ATTRIBUTES)


def position_limit(model: nn.Module) -> int:
    """The longest sequence the host has positions for."""
    for name, module in model.named_modules():
        if name.endswith(("position_embeddings", "wpe")) and isinstance(module, nn.Embedding):
            # RoBERTa's positions start after that of padding.
            first = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - first
    for name, parameter in model.named_parameters():
        if name.endswith(("position_embeddings", "pos_embed")) and parameter.ndim == 3:
            return parameter.shape[1]  # (1, n, width)
    if any(is_decoder(module) for module in model.modules()):  # rotary: no table, but a promise
        return model.config.max_position_embeddings  # type: ignore[union-attr, return-value]
    raise LunaError(
        f"{type(model).__name__} has no position table that limits its inputs: give max_len=..."
    )


def _other_attention(modules: dict[str, nn.Module], attentions: set[str]) -> str:
    def related(name: str) -> bool:
        return any(
            name == f or name.startswith(f + ".") or f.startswith(name + ".") or not name
            for f in attentions
        )

    return shortened(
        f"{name} ({type(m).__name__})"
        for name, m in modules.items()
        if type(m).__name__.endswith(("Attention", "Attn")) and not related(name)
        if any(True for _ in m.parameters())
    )


def shortened(names: Iterable[str]) -> str:
    """The first three, and how many there are beyond."""
    every = list(names)
    return ", ".join(every[:3]) + (f" and {len(every) - 3} more" if len(every) > 3 else "")


def _check_layout(name: str, module: nn.Module) -> None:
    """Raise a LunaError for what a model of a supported class may have beside it."""
    config = getattr(module, "config", None)
    if getattr(config, "add_cross_attention", False):
        raise LunaError(
            f"{name} belongs to a model with cross-attention, which cannot be converted"
        )
    causal = getattr(module, "is_causal", False) or getattr(module, "is_decoder", False)
    if is_decoder(module) != bool(causal and getattr(config, "is_causal", True)):
        here, only = "causal", "a bidirectional encoder"
        if is_decoder(module):
            here, only = "bidirectional", "a causal decoder"
        raise LunaError(
            f"{name} is {here} here, and {type(module).__name__} can be converted as {only} only"
        )
    window = getattr(config, "sliding_window", None) if causal else None
    if window is not None:
        raise LunaError(
            f"{name} sees a window of {window} tokens, converted attention sees all of them: load "
            "the model with sliding_window=None, which changes nothing in texts as short as that"
        )


def _site(name: str, module: nn.Module) -> Site:
    # Read from the module: hidden_size / heads is not the head width of every model.
    n_heads = _first(module, "num_attention_heads", "n_heads", "num_heads")
    head_dim = _first(module, "attention_head_size", "head_dim")
    rate = _first(module, "attention_dropout", "attn_drop", "attn_dropout", "dropout")
    dropout = float(getattr(rate, "p", rate))
    return Site(name, module, n_heads, head_dim, dropout, is_decoder(module))


def _first(module: nn.Module, *names: str):
    """The first of these that the module has, or else its config (Llama's number of heads)."""
    owners = (module, getattr(module, "config", None))
    return next(getattr(owner, n) for owner in owners for n in names if hasattr(owner, n))
