"""What runs inside a converted layer, and how a model of transformers calls it.

transformers looks its attention up in a registry of functions, and the form of the mask in a second
one. A function registered without a mask function always receives None, so that padding would
silently be attended to. Ours returns the caller's (B, n) mask, so memory stays O(n).

A converted module has one submodule more, `luna_layer`, whose attention is the registry's `softmax`
where the layer stays softmax. A module without it raises: a checkpoint that was loaded without
luna.convert.load must not silently run softmax.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from luna.base import Attention, LunaError

if TYPE_CHECKING:
    from luna.convert.cache import StateLayer

IMPLEMENTATION = "luna"  # the name in the registries of transformers
NAME = "luna_layer"  # of the submodule
GENERATOR = "generator_"


class Given(NamedTuple):
    """What a converted layer attends to: q, k, v (B, H, n, d), the mask (B, n) of real tokens, and
    the hidden states x (B, n, E) for those that need them."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    x: Tensor | None

    def detached(self) -> Given:
        """The same without the graph that made it."""
        q, k, v, mask, x = self
        return Given(q.detach(), k.detach(), v.detach(), mask, None if x is None else x.detach())


# (layer, what it attends to) -> (out, weights or None): replaces `attend` during a forward.
Probe = Callable[["ConvertedLayer", Given], tuple[Tensor, Tensor | None]]


class ConvertedLayer(nn.Module):
    """The attention of a converted module, and the inputs of its present call that transformers
    does not pass on."""

    def __init__(self, attention: Attention):
        super().__init__()
        self.attention = attention
        self.training = attention.training
        self.probe: Probe | None = None
        self.x: Tensor | None = None  # hidden states
        self.state: StateLayer | None = None  # of a decoder: its part of the cache
        self.hook: Any = None  # sets x and state
        # safetensors files hold tensors alone: a random generator that was used becomes one.
        attention.register_state_dict_post_hook(_generators_to_tensors)
        attention.register_load_state_dict_pre_hook(_tensors_to_generators)

    def attach(self, module: nn.Module) -> None:
        module.add_module(NAME, self)
        if self.attention.traits().needs_x or self.attention.causal:
            self.hook = module.register_forward_pre_hook(_keep_inputs, with_kwargs=True)

    def detach(self, module: nn.Module) -> None:
        if self.hook is not None:
            self.hook.remove()
        delattr(module, NAME)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        *,
        scaling: float | None = None,
        weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Run the attention, or the function that `probing` has put in its place."""
        if scaling is not None and abs(scaling * q.shape[-1] ** 0.5 - 1) > 1e-6:
            q = q * (scaling * q.shape[-1] ** 0.5)  # every method itself scales by d^(-1/2)
        x, state = self.x, self.state
        self.x = self.state = None
        if self.probe is not None:
            return self.probe(self, Given(q, k, v, mask, x))
        return self.attend(Given(q, k, v, mask, x), weights=weights, state=state)

    def attend(
        self, given: Given, *, weights: bool = False, state: StateLayer | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output (B, H, n, d) and, on request, the matrix (B, H, n, n). `state` is what
        a decoder keeps of the tokens before."""
        q, k, v, mask, x = given
        if state is None:
            out = self.attention(*given)
        elif weights and state.seen:
            raise LunaError(
                "a state keeps no keys, so that there is no attention map over earlier tokens: "
                "use_cache=False for output_attentions"
            )
        else:
            out = state.extend(self.attention, q, k, v, mask)
        return out, self.attention.matrix(q, k, mask, x) if weights else None


def _keep_inputs(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    layer = module.luna_layer
    if layer.attention.traits().needs_x:
        layer.x = args[0] if args else kwargs["hidden_states"]
    if layer.attention.causal:
        from luna.convert.cache import state_layer  # needs transformers

        cache = kwargs.get("past_key_values")
        layer.state = None if cache is None else state_layer(cache, module.layer_idx)


def _generators_to_tensors(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
    generators = state.pop(f"{prefix}_extra_state", {})
    state.update({f"{prefix}{GENERATOR}{kind}": s for kind, s in generators.items()})


def _tensors_to_generators(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
    start = prefix + GENERATOR
    saved = {key: state.pop(key) for key in list(state) if key.startswith(start)}
    state[f"{prefix}_extra_state"] = {key.removeprefix(start): s for key, s in saved.items()}


def converted_layers(model: nn.Module) -> dict[str, ConvertedLayer]:
    """List the converted layers, those that stay softmax included, by the host module's name."""
    layers = ((n, m) for n, m in model.named_modules() if isinstance(m, ConvertedLayer))
    return {name.rpartition(".")[0]: layer for name, layer in layers}


@contextlib.contextmanager
def probing(model: nn.Module, probe: Probe) -> Iterator[None]:
    """Inside, `probe` computes every converted layer."""
    layers = list(converted_layers(model).values())
    for layer in layers:
        layer.probe = probe
    try:
        yield
    finally:
        for layer in layers:
            layer.probe = None


class TimmLinearAttention(nn.Module):
    """The steps of timm.layers.Attention. timm has no registry of attention functions: a module is
    replaced by one with the same children under the same names, so that checkpoints still load.
    ViT-B/16 has no `norm` and `gate`, other models have."""

    def __init__(self, original: Any):
        super().__init__()
        self.n_heads: int = original.num_heads
        self.head_dim: int = original.head_dim
        self.scale: float = original.scale
        for name, child in original.named_children():
            self.add_module(name, child)
        self.norm = getattr(original, "norm", None)
        self.gate = getattr(original, "gate", None)
        self.training = original.training
        self.__dict__["original"] = original  # not as a submodule, which would be saved twice

    def forward(
        self: Any, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        if attn_mask is not None or is_causal:
            raise LunaError("converted timm attention takes neither attn_mask nor is_causal")
        B, n, _ = x.shape
        q, k, v = self.qkv(x).reshape(B, n, 3, self.n_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)  # (B, H, n, d)
        out, _ = self.luna_layer(q, k, v, None, scaling=self.scale)
        out = out.transpose(1, 2).flatten(2)  # (B, n, H d)
        if self.norm is not None:
            out = self.norm(out)
        if self.gate is not None:
            out = out * self.gate(x).sigmoid()
        return self.proj_drop(self.proj(out))


# ---------------------------------------------------------------------- transformers


def transformers() -> Any:
    """Import the package, with our functions in its registries."""
    try:
        import transformers
        from transformers.masking_utils import AttentionMaskInterface
        from transformers.modeling_utils import AttentionInterface
    except ImportError as error:
        raise LunaError(
            "converting a Hugging Face model needs transformers 5: pip install 'luna-lra[convert]'"
        ) from error
    AttentionInterface.register(IMPLEMENTATION, attention_function)
    AttentionMaskInterface.register(IMPLEMENTATION, mask_function)
    return transformers


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inside, transformers prints neither a table of new parameters nor a progress bar."""
    log = transformers().utils.logging
    level = log.get_verbosity()
    bars = log.is_progress_bar_enabled()
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
    output_attentions: bool = False,
    **_: Any,  # also the host's dropout: an attention with weights was built with it
) -> tuple[Tensor, Tensor | None]:
    """The registered attention function: output (B, n, H, d), and weights on request."""
    layer: Any = getattr(module, NAME, None)
    if layer is None:
        raise LunaError(
            f"this {type(module).__name__} should run linear attention but has no feature map: "
            "load converted models with luna.convert.load(folder)"
        )
    if key.shape[1] != query.shape[1]:  # grouped heads: several heads of q share one of k and v
        groups = query.shape[1] // key.shape[1]
        key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
    if attention_mask is not None:
        _check_mask(attention_mask)
    asked = {"scaling": scaling, "weights": bool(output_attentions)}
    out, weights = layer(query, key, value, attention_mask, **asked)
    return out.transpose(1, 2).contiguous(), weights


def mask_function(
    *,
    kv_length: int,
    attention_mask: Tensor | None = None,
    mask_function: Callable[..., Any] | None = None,
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
    _check_mask(attention_mask)
    mask = attention_mask[:, -kv_length:].bool()
    # Without padding there is no mask; compiled code cannot branch on contents.
    if not torch.compiler.is_compiling() and bool(mask.all()):
        return None
    return mask


def _check_mask(mask: Tensor) -> None:
    # transformers passes a caller's 4-D mask on unchanged. It may hide other keys from each query,
    # and its polarity is a guess: without padding an additive mask is all zeros.
    if mask.ndim != 2:
        raise LunaError(
            "converted attention supports padding only: give it an attention mask (B, n) in place "
            f"of one of shape {tuple(mask.shape)}"
        )
