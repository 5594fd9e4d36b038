"""The contract of a mixer: hidden states x (B, n, E) and a mask in, hidden states like them out.

Everything that lets the tokens of a sequence meet is one: an attention between its projections
(luna/qkv.py), a state space, a gated recurrence, a convolution (luna/mixers/). A mixer of one's own
subclasses `Mixer` and implements `mix`; padding, precision and the checks of inputs are here.

    B batch   n tokens   E d_model   mask (B, n) bool, True = real token
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from luna.errors import LunaError, in_network, positive
from luna.method import Method
from luna.tensors import HALF, Mask, zero_padded_rows
from luna.traits import Traits


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where in a network a mixer stands: what it is built for."""

    d_model: int  # E
    n_heads: int  # its heads
    max_len: int  # tokens of the longest sequence
    causal: bool = False  # no token sees what comes behind it
    profile: str = "strict"  # whose code it reproduces: strict, published or official
    dropout: float = 0.0  # inside the mixer, by those that have some (uses_dropout)
    seed: int = 0  # of the mixer's own random stream
    layer: int = 0  # of n_layers, for mixers whose layers differ
    n_layers: int = 1  # of the network

    def __post_init__(self) -> None:
        positive("mixer", d_model=self.d_model, n_heads=self.n_heads, max_len=self.max_len)
        in_network(self.dropout, self.layer, self.n_layers)


class Mixer(Method):
    """A module from hidden states and a mask to hidden states of the same shape and dtype. A mixer
    of one's own implements `mix`."""

    declared: ClassVar[Any] = Traits()

    def __init__(self, place: Place):
        super().__init__(place.seed)
        if place.causal and not self.declared.causal_form:
            raise LunaError(
                f"mixer '{self.name}' has no causal form; methods that have one: "
                "luna.names(causal=True)"
            )
        self.place, self.causal = place, place.causal
        self.d_model, self.max_len = place.d_model, place.max_len
        self.profile = self.effective_profile(place.profile)

    # ------------------------------------------------------------------ what a mixer implements

    def mix(self, x: Tensor, mask: Mask) -> Tensor:
        """(B, n, E). Under the strict profile padded rows of x are already zero and, unless the
        mixer declares `full_precision=False`, x is float32 or float64 and autocast is off."""
        raise NotImplementedError(f"{type(self).__name__} must implement mix()")

    def mix_from(self, state: Any, x: Tensor, mask: Mask) -> tuple[Any, Tensor]:
        """The state after n tokens that follow `state` (None: the first ones), a tuple whose
        tensors begin with B, and their outputs (B, n, E): mix() of the causal form, streamed."""
        raise LunaError(
            f"mixer '{self.name}' cannot stream: build it with causal=True; methods that have a "
            "causal form: luna.names(causal=True)"
        )

    def parts(self) -> Iterator[tuple[nn.Module, str]]:
        """The modules that it consists of and what each counts as: attention, projections or
        local."""
        yield self, "attention"

    # ------------------------------------------------------------------ what every mixer inherits

    def forward(self, x: Tensor, mask: Mask = None) -> Tensor:
        """Mix the tokens of each sequence.

        x        hidden states (B, n, d_model)
        mask     (B, n) bool, True where a token is real; None: all are
        returns  hidden states of the shape and dtype of x
        """
        entered = self._enter(x, mask)
        with self._precision(x.device):
            out = self.mix(entered, mask)
        return self._leave(out, entered, mask).to(x.dtype)

    def step(self, state: Any, x_t: Tensor) -> tuple[Any, Tensor]:
        """One token of the causal form, x_t (B, E)."""
        state, out = self.steps(state, x_t.unsqueeze(1))
        return state, out.squeeze(1)

    def steps(self, state: Any, x: Tensor, mask: Mask = None) -> tuple[Any, Tensor]:
        """n tokens of the causal form: the state after them, and their outputs (B, n, E). Padding
        may stand among the first tokens alone."""
        if not self.causal:
            return Mixer.mix_from(self, state, x, mask)  # which says why it is refused
        if state is not None and mask is not None and not bool(mask.all()):
            raise LunaError(
                f"mixer '{self.name}' cannot stream padding after a state: give real tokens alone"
            )
        if state is not None and len(state[0]) != len(x):
            raise LunaError(
                f"this state does not belong to these tokens: it is of {len(state[0])} sequences, "
                f"and x has {len(x)}; start a sequence with state=None"
            )
        entered = self._enter(x, mask)
        with self._precision(x.device):
            state, out = self.mix_from(state, entered, mask)
        return state, self._leave(out, entered, mask).to(x.dtype)

    def _enter(self, x: Tensor, mask: Mask) -> Tensor:
        self._check_inputs(x, mask)
        if self.profile == "strict":
            x = zero_padded_rows(x, mask)
        if not self.traits().full_precision:
            return x
        if any(p.dtype in HALF for p in self.parameters()):
            raise LunaError(
                f"mixer '{self.name}' computes in full precision: keep its weights in float32 and "
                "use autocast (trainer.precision=bf16-mixed)"
            )
        return x.float() if x.dtype in HALF else x

    def _leave(self, out: Tensor, x: Tensor, mask: Mask) -> Tensor:
        """The outputs, of the shape and dtype of x, 0 at padding under strict."""
        if out.shape != x.shape:
            raise LunaError(
                f"mixer '{self.name}' must give hidden states of the shape of x, "
                f"{tuple(x.shape)}, and gave {tuple(out.shape)}"
            )
        same = out.dtype == x.dtype if self.traits().full_precision else out.is_floating_point()
        if not same:
            raise LunaError(
                f"mixer '{self.name}' was given {x.dtype} and must give the same, not {out.dtype}"
            )
        return zero_padded_rows(out, mask) if self.profile == "strict" else out

    def _check_inputs(self, x: Tensor, mask: Mask) -> None:
        """Refuse inputs that do not fit; only shapes, dtypes and devices are read."""
        if x.dim() != 3 or x.shape[2] != self.d_model or 0 in x.shape:
            raise LunaError(
                f"mixer '{self.name}' was built for d_model={self.d_model}: x must be "
                f"(B, n, {self.d_model}) and not empty, got {tuple(x.shape)}"
            )
        if not x.is_floating_point():
            raise LunaError(f"x must have a floating-point dtype, got {x.dtype}")
        B, n = x.shape[:2]
        if self.traits().bound_to_max_len and n > self.max_len:
            raise LunaError(
                f"{self.name} was built for max_len={self.max_len} tokens and got {n}: build it "
                "with a larger max_len"
            )
        if mask is None:
            return
        if mask.device != x.device:
            raise LunaError(f"mask is on {mask.device} and x on {x.device}: move one of them")
        if mask.dtype != torch.bool or mask.shape != (B, n):
            raise LunaError(
                f"mask must be bool of shape (B, n) = ({B}, {n}), True = real token; got "
                f"{mask.dtype} of shape {tuple(mask.shape)}"
            )

    def extra_repr(self) -> str:
        return f"d_model={self.d_model}, max_len={self.max_len}, profile={self.profile}"


class Layered(Mixer):
    """A choice of one method for each layer of a network: `luna.mixer` builds that of the layer."""

    @classmethod
    def of_layer(cls, layer: int, layers: list[Any] | None = None) -> dict[str, Any]:
        """The name and the settings of the method that a layer has; `layers` is its option."""
        raise NotImplementedError(f"{cls.__name__} must implement of_layer()")
