"""Conversion of a pretrained softmax model to another attention, and back.

Projections stay as they are, bit for bit. What changes is the function of (q, k, v, mask): each
attention layer gets an attention of the registry with its own feature map.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import luna
from luna.base import Attention, LunaError, nearest
from luna.convert import host
from luna.convert.layers import Site, find_sites, is_hugging_face, position_limit
from luna.registry import build

PHI = f".{host.NAME}.attention."  # between a layer's name and that of a tensor of its feature map
# Settings of a slot that each layer takes from the softmax attention that it replaces.
OF_THE_HOST = ("n_heads", "head_dim", "causal", "dropout", "layer", "n_layers")


def presets(attention: str, head_dim: int) -> dict[str, dict[str, Any]]:
    """List options by the name of their preset; the first one is the default. The paper converts
    with one map per layer and head. At the same feature width (Hedgehog's) many projections and one
    positive function fit softmax maps far better than the listing's 8 x 8 (docs/conversion.md)."""
    if attention != "luna":
        return {}
    return {
        "wide": {"share": "head", "M": 2 * head_dim, "L": 1, "nonneg": "exp"},
        "listing": {"share": "head", "M": 8, "L": 8, "nonneg": True},
    }


def convert(
    model: nn.Module,
    attention: str = "luna",
    *,
    preset: str | None = None,
    layers: str | Sequence[int] = "all",
    inplace: bool = False,
    max_len: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Any:
    """Replace a model's softmax attention by the method `attention`.

    model      of transformers or timm, loaded, with softmax attention
    attention  a method of `luna.names()` that is an attention
    preset     of luna: wide (M = 2 head_dim, L = 1, exp; the default) or the paper's listing
    layers     "all", "last:6", or the numbers of the layers; the others stay softmax
    inplace    change `model` itself; otherwise it is copied
    max_len    for methods that depend on positions; None: the host's own limit
    seed       of the new parameters and of random features
    options    of the method, as in `luna.build`; None: the preset's value
    returns    the converted model, of the same class
    """
    _refuse_model(model)
    _refuse_settings_of_the_host(options)
    fingerprint = weights_hash(model)
    model = model if inplace else copy.deepcopy(model)

    # Which layers change, and with which options.
    sites = find_sites(model)
    numbers = _choose(layers, len(sites))
    options, preset = _with_preset(attention, preset, options, sites[0].head_dim)
    max_len = position_limit(model) if max_len is None else max_len

    # All are built before the model changes, so that a wrong option leaves it as it was.
    attentions = _build_attentions(sites, numbers, attention, options, max_len, seed)
    _refuse_divisors(attention, attentions)

    # What `describe` says of the model from now on; it is saved in config.json.
    description = {
        "method": attention,
        "options": options,
        "preset": preset,
        "layers": [sites[i].name for i in numbers],
        "layer_numbers": numbers,
        "max_len": max_len,
        "seed": seed,
        "teacher": fingerprint,
        "stage": "swap",
        **({"causal": True} if sites[0].causal else {}),
        "versions": {"luna": luna.__version__, "torch": str(torch.__version__)},
    }
    for site, new in zip(sites, attentions, strict=True):
        _attach(model, site, new)
    _activate(model, sites, description)
    return model


def _refuse_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise LunaError(
            f"linearize wants a loaded model, not {model!r}: "
            "transformers.AutoModel.from_pretrained(name) loads one"
        )
    if description := describe(model):
        raise LunaError(
            f"this model already runs '{description['method']}': luna.convert.revert(model) first"
        )
    if hasattr(model, "_orig_mod"):
        raise LunaError("this model is compiled: convert it first, then torch.compile the result")


def _refuse_settings_of_the_host(options: Mapping[str, Any]) -> None:
    given = [name for name in OF_THE_HOST if name in options]
    if given:
        raise LunaError(
            f"a conversion cannot be given {', '.join(given)}: an attention takes that from the "
            "softmax attention that it replaces"
        )


def _with_preset(
    attention: str, preset: str | None, options: Mapping[str, Any], head_dim: int
) -> tuple[dict[str, Any], str | None]:
    """The options filled up by a preset, and the name of the first preset that has just these."""
    by_preset = presets(attention, head_dim)
    if preset is not None and preset not in by_preset:
        problem = f"conversion to '{attention}' has no preset '{preset}'"
        raise LunaError(problem + nearest(preset, by_preset))
    default = next(iter(by_preset), "")
    without_none = {name: value for name, value in options.items() if value is not None}
    filled = by_preset.get(preset or default, {}) | without_none
    same = [name for name, values in by_preset.items() if values.items() <= filled.items()]
    return filled, same[0] if same else None


def _refuse_divisors(attention: str, attentions: Iterable[Attention]) -> None:
    """Refuse all but means of values."""
    if any(getattr(new, "normalise", "sum") != "sum" for new in attentions):
        raise LunaError(
            f"a conversion to '{attention}' must divide by the sum of weights (normalise='sum'): "
            "the layers after it expect means of values, at the teacher's scale"
        )


def _attach(model: nn.Module, site: Site, new: Attention) -> None:
    """Let the module of a site run the new attention; timm's modules are replaced for that."""
    module = site.module
    if not is_hugging_face(module):
        module = host.TimmLinearAttention(module)
        _replace(model, site.name, module)
    host.ConvertedLayer(new).attach(module)


def _activate(model: nn.Module, sites: Sequence[Site], description: dict[str, Any]) -> None:
    if not hasattr(model, "set_attn_implementation"):
        model.__dict__["luna"] = description
        return
    config: Any = model.config
    description["versions"]["transformers"] = host.transformers().__version__
    description["host_implementation"] = config._attn_implementation
    model.set_attn_implementation(host.IMPLEMENTATION)  # type: ignore[operator]
    config.luna = description
    # transformers does not write the implementation that it runs into config.json, so a reloaded
    # model would silently run softmax. It does read this key: loading the folder without
    # luna.convert.load then fails.
    config.attn_implementation = host.IMPLEMENTATION
    for site in sites:
        site_config: Any = site.module.config
        if site_config._attn_implementation != host.IMPLEMENTATION:
            raise LunaError(
                f"{site.name} did not take the new attention: its config is not the model's"
            )


def revert(model: nn.Module, *, inplace: bool = False) -> Any:
    """Give a converted model softmax again: projections untouched, feature maps gone.

    model    a converted one
    inplace  change `model` itself; otherwise it is copied
    returns  the model with softmax attention
    """
    implementation = described(model).get("host_implementation")
    model = model if inplace else copy.deepcopy(model)
    config: Any = getattr(model, "config", None)
    for name, layer in host.converted_layers(model).items():
        module: Any = model.get_submodule(name)
        layer.detach(module)
        if isinstance(module, host.TimmLinearAttention):
            _replace(model, name, module.original)  # type: ignore[arg-type]
    if hasattr(model, "set_attn_implementation"):
        del config.luna, config.attn_implementation
        model.set_attn_implementation(implementation)  # type: ignore[operator]
    else:
        del model.__dict__["luna"]
    return model


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


def describe(model: nn.Module) -> dict[str, Any] | None:
    """Describe a conversion.

    model    any
    returns  method, options, layers and more, by name; None for a model that was not converted
    """
    config = getattr(model, "config", None)
    return getattr(config, "luna", None) or model.__dict__.get("luna")


def described(model: nn.Module) -> dict[str, Any]:
    """Describe a model that must have been converted."""
    description = describe(model)
    if description is None:
        raise LunaError("this model was not converted: luna.linearize(model) first")
    return description


def feature_maps(model: nn.Module) -> dict[str, Any]:
    """List the attention of every converted layer by the layer's name, without softmax layers."""
    names = set(described(model)["layers"])
    return {n: m.attention for n, m in host.converted_layers(model).items() if n in names}


def feature_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """List the trainable tensors of the feature maps.

    model    a converted one
    returns  the tensors by their names in the model
    """
    described(model)
    return {name: p for name, p in model.named_parameters() if PHI in name}


def weights_hash(model: nn.Module) -> str:
    """Hash the host's tensors, without those of the feature maps (SHA-256)."""
    digest = hashlib.sha256()
    state: dict[str, Tensor] = model.state_dict()
    for name in sorted(name for name in state if PHI not in name):
        tensor = state[name]
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _choose(layers: str | Sequence[int], n: int) -> list[int]:
    if layers == "all":
        return list(range(n))
    last = re.fullmatch(r"last:([1-9]\d*)", layers) if isinstance(layers, str) else None
    several = layers if isinstance(layers, Iterable) else [layers]
    numbers: list[Any] = [*range(n - int(last[1]), n)] if last else [*several]
    if not numbers or any(i not in range(n) for i in numbers):
        raise LunaError(
            f"layers must be 'all', 'last:k' with k in 1..{n}, or numbers from 0 to {n - 1}, "
            f"got {layers!r}"
        )
    return sorted(set(numbers))


def build_attention(
    site: Site, method: str, options: dict[str, Any], *, max_len: int, seed: int
) -> Attention:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        attention = build(
            method,
            n_heads=site.n_heads,
            head_dim=site.head_dim,
            max_len=max_len,
            causal=site.causal,
            dropout=site.dropout,
            seed=seed,
            **options,
        )
    attention.train(site.module.training)
    # Sums of features need float32, whatever the host's precision.
    return attention.to(next(site.module.parameters()).device)


def _build_attentions(
    sites: Sequence[Site],
    numbers: Sequence[int],
    method: str,
    options: dict[str, Any],
    max_len: int,
    seed: int,
) -> list[Attention]:
    """One for each site: the method where a number names the site, else softmax."""
    attentions = []
    for i, site in enumerate(sites):
        seed_of_site = seed * len(sites) + i
        if i in numbers:
            new = build_attention(site, method, options, max_len=max_len, seed=seed_of_site)
        else:
            new = build_attention(site, "softmax", {}, max_len=max_len, seed=seed_of_site)
        attentions.append(new)
    return attentions
