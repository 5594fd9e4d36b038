"""An attention between its projections: the mixer that most methods of this library are.

    q, k, v = heads of x W_qkv      out = attention(q, k, v) W_o

Which projections there are is the method's to say, in letters: `qkvo`, all four; `qvo`, keys are
queries; `vo` and `v`, a method that reads no queries and keys. What it does not name it does not
have, so no parameter idles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import signature
from typing import Any

from torch import Tensor, nn

from luna.around import Around
from luna.contract import Attention
from luna.errors import LunaError
from luna.heads import split_heads
from luna.local import LocalBranch
from luna.mixing import Mixer, Place
from luna.surround import HeadNorm, ShortConv, output_gate
from luna.tensors import Mask
from luna.traits import AttentionTraits, Traits

LETTERS = ("qkvo", "qkv", "qvo", "qv", "vo", "v")  # of q, k, v and o, the output


def keep(linear: nn.Linear, parts: int = 1) -> None:
    """Keep U(-1/sqrt(fan_in), 1/sqrt(fan_in)), which nn.Linear has already drawn."""


@dataclass(frozen=True, kw_only=True)
class Style:
    """What the style of a network decides about each of its attentions."""

    qkv_dim: int | None = None  # of all heads together; None: d_model
    qkv_bias: bool = True
    out_bias: bool = True
    initialise: Callable[..., None] = keep  # (linear, parts=1)
    alibi: bool = False
    # What turns queries and keys, such as rotary positions: built for the attention.
    positions: Callable[[Attention], nn.Module] | None = None
    grid: tuple[int, int] | None = None  # rows and columns of the tokens, on images
    cls: bool = False  # position 0 holds the CLS token, outside of the grid


class QKV(Mixer):
    """x (B, n, E) -> (B, n, E). Rows at padding hold the bias of the output projection and mean
    nothing."""

    declared = Traits(causal_form=True)  # its attention refuses what it has not

    def __init__(
        self,
        method: type[Attention],
        build: Callable[..., Attention],  # for a slot of these settings
        place: Place,
        around: Around,
        style: Style,
        *,
        letters: str = "qkvo",
    ):
        super().__init__(place)
        self.name, self.profile = method.name, method.effective_profile(place.profile)
        self.letters = checked_letters(self.name, letters)
        width = style.qkv_dim or place.d_model
        self.n_heads, self.head_dim = place.n_heads, head_width(width, place.n_heads)
        # One product for q, k and v; each is initialised as a layer of its own.
        parts = len(self.letters.replace("o", ""))
        self.qkv = nn.Linear(place.d_model, parts * width, bias=style.qkv_bias)
        style.initialise(self.qkv, parts=parts)
        self.attention = build(
            n_heads=self.n_heads,
            head_dim=self.head_dim,
            max_len=place.max_len,
            causal=place.causal,
            profile=place.profile,
            dropout=place.dropout,
            seed=place.seed,
            alibi=style.alibi,
            normalise=around.normalise,
            layer=place.layer,
            n_layers=place.n_layers,
        )
        self._check_widths(width)
        # One of your own may override `forward` without it: then it clears padding once more.
        self.says_zeroed = "zeroed" in signature(self.attention.forward).parameters
        positions = style.positions
        self.turned = positions(self.attention) if positions else nn.Identity()
        self._surround(around, style, parts * width, width)
        self.out: nn.Module = nn.Identity()
        if "o" in self.letters:
            self.out = nn.Linear(width, place.d_model, bias=style.out_bias)
            style.initialise(self.out)

    def _surround(self, around: Around, style: Style, projected: int, width: int) -> None:
        """What is off by default, and then draws no random number."""
        self.local: LocalBranch | None = None
        if around.dwc != "none":
            sizes = (self.n_heads, self.head_dim, style.grid)
            self.local = LocalBranch(around.dwc, *sizes, causal=self.causal, cls=style.cls)
        self.conv: ShortConv | None = None
        if around.short_conv:
            self.conv = ShortConv(projected, around.short_conv, causal=self.causal)
        self.norm = HeadNorm(self.n_heads, self.head_dim) if around.head_norm else None
        self.gate = output_gate(around.gate, self.d_model, width)

    def forward(self, x: Tensor, mask: Mask = None) -> Tensor:
        self._check_inputs(x, mask)
        q, k, v = self._heads(x, mask)
        # A tensor of its own: an attention's backward pass ends with the gradients of its inputs,
        # and that of x is complete only behind the projections, which would be counted with it.
        hidden = x.view_as(x) if self.attention.traits().needs_x else None
        strict = self.attention.profile == "strict"
        zeroed = {"zeroed": True} if strict and self.says_zeroed else {}
        out = self.attention(q, k, v, mask, hidden, **zeroed)
        return self._merge(out, v, x, mask)

    def steps(self, state: Any, x: Tensor, mask: Mask = None) -> tuple[Any, Tensor]:
        """n tokens of the causal form: the state after them, and their outputs (B, n, E)."""
        self._check_inputs(x, mask)
        turns = not isinstance(self.turned, nn.Identity)
        if self.local is not None or self.conv is not None or turns:
            raise LunaError(
                f"attention '{self.name}' cannot stream with a convolution, a local branch or "
                "rotary positions, which need the tokens before: build it without them"
            )
        q, k, v = self._heads(x, mask)
        hidden = {"x": x} if self.attention.traits().needs_x else {}
        state, out = self.attention.steps(state, q, k, v, mask, **hidden)
        return state, self._merge(out, v, x, mask)

    def _heads(self, x: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v (B, H, n, d); a method without a projection of its own for one is given another,
        which it does not read."""
        strict = self.attention.profile == "strict"
        real = mask if strict else None
        projected = self.qkv(x)
        if self.conv is not None:
            projected = self.conv(projected, real)
        heads = split_heads(projected.unflatten(-1, (-1, self.n_heads, self.head_dim)), real)
        given = dict(zip(self.letters.replace("o", ""), heads, strict=True))
        v = given["v"]
        q = self.turned(given["q"]) if "q" in given else v
        k = self.turned(given["k"]) if "k" in given else q
        return q, k, v

    def _merge(self, out: Tensor, v: Tensor, x: Tensor, mask: Mask) -> Tensor:
        if self.local is not None:
            out = out + self.local(v, mask)
        if self.norm is not None:
            out = self.norm(out)
        out = out.transpose(1, 2).flatten(2)  # (B, n, H d)
        if self.gate is not None:
            out = self.gate(out, x)
        return self.out(out)

    def parts(self) -> Iterator[tuple[nn.Module, str]]:
        yield from ((self.qkv, "projections"), (self.out, "projections"))
        yield self.attention, "attention"
        for part, kind in (
            (self.local, "local"),
            (self.conv, "local"),
            (self.norm, "projections"),
            (self.gate, "projections"),
        ):
            if part is not None:
                yield part, kind

    def tie(self, first: Mixer) -> None:
        assert isinstance(first, QKV)
        self.attention.tie(first.attention)

    def evaluation(self, device: str) -> str | None:
        return self.attention.evaluation(device)

    def _traits(self) -> Traits:
        """Those of its attention that are about hidden states. The projections run in the precision
        of the network; the attention sees to its own."""
        facts: AttentionTraits = self.attention.traits()
        shared = {name: getattr(facts, name) for name in Traits.__dataclass_fields__}
        return Traits(**shared | {"full_precision": False})

    def _check_widths(self, width: int) -> None:
        needs_x = self.attention.traits().needs_x
        if width == self.d_model or not (needs_x or "o" not in self.letters):
            return
        why = "reads the hidden states" if needs_x else "projects no output"
        raise LunaError(
            f"attention '{self.name}' {why}: all heads together must be as wide as the hidden "
            f"states, but qkv_dim={width} and d_model={self.d_model}"
        )


def checked_letters(name: str, letters: str) -> str:
    if letters not in LETTERS:
        raise LunaError(
            f"attention '{name}' names its projections '{letters}': write one of "
            f"{', '.join(LETTERS)}"
        )
    return letters


def head_width(width: int, n_heads: int) -> int:
    if width % n_heads:
        raise LunaError(f"{n_heads} heads do not divide a width of {width}: choose others")
    return width // n_heads
