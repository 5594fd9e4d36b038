"""What runs inside a converted layer, and how a model of transformers calls it.

transformers looks its attention up in a registry of functions, and the form of the mask in a second
one. A function registered without a mask function always receives None, so that padding would
silently be attended to. Ours returns the caller's (B, n) mask, so memory stays O(n).

A converted layer has the submodule `luna_attn`, its attention (the registry's `softmax` where the
layer stays softmax), and `luna_layer`, which is no module and is saved nowhere. A layer without
them raises: a checkpoint that was loaded without luna.convert.load must not silently run softmax.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import Attention, LunaError

if TYPE_CHECKING:
    from luna.convert.cache import StateLayer

IMPLEMENTATION = "luna"  # the name in the registries of transformers
WRONG_MASK = "an attention mask must be (B, n) or (B, 1, n, n), got {}"

# (module, q, k, v, mask, x) -> (out, weights or None): replaces `attend` during a forward.
Probe = Callable[..., tuple[Tensor, Tensor | None]]


@dataclass(eq=False)
class ConvertedLayer:
    """A converted layer, and the inputs of its present call that transformers does not pass on."""

    attention: Attention
    dropout: float = 0.0  # on the output, in training
    probe: Probe | None = None
    x: Tensor | None = None  # hidden states
    state: StateLayer | None = None  # of a decoder: its part of the cache
    hook: Any = None  # keeps x and state


def converted(module: nn.Module) -> ConvertedLayer:
    return module.luna_layer  # type: ignore[return-value]


def converted_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The host modules with a `luna_attn`, layers that stay softmax included, by dotted name."""
    return {n: m for n, m in model.named_modules() if "luna_attn" in m._modules}


def attend(
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    x: Tensor | None,
    *,
    weights: bool = False,
    state: StateLayer | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The student's output (B, H, n, d) and, on request, its matrix (B, H, n, n). `state` is what a
    decoder keeps of the tokens before."""
    layer = converted(module)
    if state is None:
        out = layer.attention(q, k, v, mask, x)
    else:
        if weights and state.seen:
            raise LunaError(
                "a state keeps no keys, so that there is no attention map over earlier tokens: "
                "use_cache=False for output_attentions"
            )
        out = state.extend(layer.attention, q, k, v, mask)
    if layer.dropout:
        out = F.dropout(out, layer.dropout, module.training)
    return out, layer.attention.matrix(q, k, mask, x) if weights else None


def run_layer(
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    scaling: float | None = None,
    weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The attention of a converted layer, or the function that `probing` has put in its place."""
    if not hasattr(module, "luna_layer"):
        raise LunaError(
            f"this {type(module).__name__} should run linear attention but has no feature map: "
            "load converted models with luna.convert.load(folder)"
        )
    if scaling is not None and abs(scaling * q.shape[-1] ** 0.5 - 1) > 1e-6:
        q = q * (scaling * q.shape[-1] ** 0.5)  # every method itself scales by d^(-1/2)
    layer = converted(module)
    x, state = layer.x, layer.state
    layer.x = layer.state = None
    if layer.probe is not None:
        return layer.probe(module, q, k, v, mask, x)
    return attend(module, q, k, v, mask, x, weights=weights, state=state)


@contextlib.contextmanager
def probing(model: nn.Module, probe: Probe) -> Iterator[None]:
    """Inside, `probe` computes every converted layer."""
    layers = [converted(module) for module in converted_layers(model).values()]
    for layer in layers:
        layer.probe = probe
    try:
        yield
    finally:
        for layer in layers:
            layer.probe = None


def attach(module: nn.Module, attention: Attention, *, context_dropout: float = 0.0) -> None:
    """Make `attention` a submodule of the host's layer, beside which `luna_layer` has the rest."""
    module.luna_attn = attention
    layer = ConvertedLayer(attention, context_dropout)
    module.luna_layer = layer  # type: ignore[assignment]
    if attention.needs_x or attention.causal:
        layer.hook = module.register_forward_pre_hook(_keep_inputs, with_kwargs=True)


def detach(module: nn.Module) -> None:
    if (hook := converted(module).hook) is not None:
        hook.remove()
    del module.luna_attn, module.luna_layer


def _keep_inputs(module: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    layer = converted(module)
    if layer.attention.needs_x:
        layer.x = args[0] if args else kwargs["hidden_states"]
    if layer.attention.causal:
        from luna.convert.cache import state_layer  # needs transformers

        cache = kwargs.get("past_key_values")
        layer.state = None if cache is None else state_layer(cache, module.layer_idx)


# ---------------------------------------------------------------------- transformers


def transformers() -> Any:
    """The package, with our functions in its registries."""
    try:
        import transformers
        from transformers.masking_utils import AttentionMaskInterface
        from transformers.modeling_utils import AttentionInterface
    except ImportError as error:
        raise LunaError(
            "converting a Hugging Face model needs transformers 5: pip install 'luna-lra[convert]'"
        ) from error
    if int(transformers.__version__.split(".")[0]) < 5:
        raise LunaError(
            f"converting needs transformers 5 or newer, {transformers.__version__} is installed: "
            "pip install 'luna-lra[convert]'"
        )
    AttentionInterface.register(IMPLEMENTATION, attention_function)
    AttentionMaskInterface.register(IMPLEMENTATION, mask_function)
    return transformers


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inside, transformers prints neither a table of new parameters nor a progress bar."""
    log = transformers().utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,  # the host's; an attention with weights was built with it
    output_attentions: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """The registered attention function: output (B, n, H, d), and weights on request."""
    if key.shape[1] != query.shape[1]:  # grouped heads: several heads of q share one of k and v
        groups = query.shape[1] // key.shape[1]
        key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
    mask = key_mask(attention_mask, query, causal=getattr(module, "is_causal", False))
    out, weights = run_layer(
        module, query, key, value, mask, scaling=scaling, weights=bool(output_attentions)
    )
    return out.transpose(1, 2).contiguous(), weights


def mask_function(
    *,
    kv_length: int,
    attention_mask: Tensor | None = None,
    mask_function: Callable | None = None,
    config: Any = None,
    **_: Any,
) -> Tensor | None:
    """The registered mask function: bool (B, n), True = real token, or None."""
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    causal = (getattr(config, "luna", None) or {}).get("causal", False)
    if mask_function is not (causal_mask_function if causal else bidirectional_mask_function):
        raise LunaError(
            f"this model asks for a {'' if causal else 'causal, '}windowed or packed attention "
            "mask; beside padding, converted attention has none"
        )
    if attention_mask is None:
        return None
    if attention_mask.ndim != 2:
        raise LunaError(WRONG_MASK.format(tuple(attention_mask.shape)))
    mask = attention_mask[:, -kv_length:].bool()
    # Without padding there is no mask; compiled code cannot branch on contents.
    if not torch.compiler.is_compiling() and bool(mask.all()):
        return None
    return mask


def key_mask(mask: Tensor | None, q: Tensor, *, causal: bool) -> Tensor | None:
    """The mask as (B, n). transformers passes a caller's 4-D mask on unchanged: it is reduced to
    one row if all its rows agree. Its dtype decides the polarity, not its values: without padding
    an additive mask is all zeros, like a 0/1 mask of padding alone."""
    if mask is None or mask.ndim == 2:
        return mask
    if mask.ndim != 4:
        raise LunaError(WRONG_MASK.format(tuple(mask.shape)))
    if causal:
        raise LunaError(
            "a converted decoder sees all earlier tokens but padding: give it an attention mask "
            "(B, n) in place of a 4-D one"
        )
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise LunaError("a 4-D attention mask must be bool (True = keep) or float (0 = keep)")
    visible = mask if mask.dtype == torch.bool else mask == 0
    if mask.is_floating_point() and not bool((visible | (mask <= -1e4)).all()):
        raise LunaError(
            "a float 4-D attention mask is added to the scores: 0 keeps a key and the smallest "
            "number of its dtype hides it; this one has values between"
        )
    row = visible[:, :1, :1]
    if not torch.equal(visible, row.expand_as(visible)):
        raise LunaError(
            "this 4-D attention mask hides different keys from different queries (causal, blocks, "
            "heads); converted attention supports padding only"
        )
    return row[:, 0, 0].expand(len(q), -1)
