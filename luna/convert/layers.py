"""Which modules of a model are softmax attention, and how each of them is built.

Attention of transformers is recognised by its class, timm's by its attributes (timm is never
imported: it needs torchvision). A module of another class that is called attention is an error.
"""

from __future__ import annotations

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
SUPPORTED = "the BERT family (BERT, DistilBERT, RoBERTa, MiniLM, ELECTRA), ViT, DeiT and timm's ViT"


@dataclass(frozen=True)
class Site:
    """One softmax attention of a host model."""

    name: str  # dotted, as in named_modules()
    module: nn.Module
    n_heads: int
    head_dim: int
    dropout: float  # on attention probabilities


def find_sites(model: nn.Module) -> list[Site]:
    """Every softmax attention, in the order of `named_modules()`; a LunaError if the model cannot
    be converted."""
    modules = dict(model.named_modules())
    found = {n: m for n, m in modules.items() if is_hugging_face(m) or is_timm(m)}
    other = _other_attention(modules, set(found))
    if other:
        raise LunaError(
            f"{type(model).__name__} has attention that cannot be converted: {other}; "
            f"supported are {SUPPORTED}"
        )
    if not found:
        raise LunaError(
            f"{type(model).__name__} has no attention that can be converted; "
            f"supported are {SUPPORTED}"
        )
    for name, module in found.items():
        _refuse_causal(name, module)
    return [_site(name, module) for name, module in found.items()]


def is_hugging_face(module: nn.Module) -> bool:
    return type(module).__name__ in HUGGING_FACE


def is_timm(module: nn.Module) -> bool:
    # The rotary, window and differential attentions of timm have other class names.
    return type(module).__name__ == "Attention" and all(hasattr(module, a) for a in TIMM_ATTRIBUTES)


def position_limit(model: nn.Module) -> int:
    """The longest sequence the host has positions for."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # RoBERTa's positions start after that of padding.
            first = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - first
    for name, parameter in model.named_parameters():
        if name.endswith(("position_embeddings", "pos_embed")) and parameter.ndim == 3:
            return parameter.shape[1]  # (1, n, width)
    raise LunaError(
        f"{type(model).__name__} has no position table that limits its inputs: give max_len=..."
    )


def _other_attention(modules: dict[str, nn.Module], found: set[str]) -> str:
    def related(name: str) -> bool:
        return any(
            name == f or name.startswith(f + ".") or f.startswith(name + ".") or not name
            for f in found
        )

    names = [
        f"{name} ({type(m).__name__})"
        for name, m in modules.items()
        if type(m).__name__.endswith(("Attention", "Attn")) and not related(name)
        if any(True for _ in m.parameters())
    ]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _refuse_causal(name: str, module: nn.Module) -> None:
    config = getattr(module, "config", None)
    if getattr(module, "is_causal", False) or getattr(module, "is_decoder", False):
        raise LunaError(f"{name} is a causal decoder's attention: only encoders can be converted")
    if getattr(config, "add_cross_attention", False):
        raise LunaError(
            f"{name} belongs to a model with cross-attention: only encoders can be converted"
        )


def _site(name: str, module: nn.Module) -> Site:
    # Read from the module: hidden_size / heads is not the head width of every model.
    n_heads = _first(module, "num_attention_heads", "n_heads", "num_heads")
    head_dim = _first(module, "attention_head_size", "head_dim")
    rate = _first(module, "attention_dropout", "attn_drop", "dropout")
    return Site(name, module, n_heads, head_dim, float(getattr(rate, "p", rate)))


def _first(module: nn.Module, *names: str):
    return next(getattr(module, n) for n in names if hasattr(module, n))
