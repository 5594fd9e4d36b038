"""The encoder: blocks whose slot takes any method of `luna`, (x, mask) -> x.

B batch   n tokens   E d_model
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

import luna
from lra.base.config import Model, NormPlace, Positions, Style
from lra.base.errors import UserError
from lra.base.versions import layers_of
from lra.model import init, rotary
from lra.model.norms import norm
from luna import qkv
from luna.dropout import Dropout


class SlotPlace(NamedTuple):
    """What a block's slot needs besides the model's sizes and style."""

    max_len: int  # including the CLS token
    profile: str
    seed: int  # of the first layer; each further layer adds 1
    grid: tuple[int, int] | None  # rows and columns of the tokens, on image tasks
    cls: bool  # position 0 holds the CLS token, outside of the grid
    layer: int = 0


def mixer(attention: dict[str, Any], model: Model, style: Style, place: SlotPlace) -> luna.Mixer:
    """Build the method of a block: an attention between projections in the style of the protocol,
    or a mixer with projections of its own."""
    options = dict(attention)
    name = options.pop("name")
    alibi = style.positions is Positions.alibi
    if alibi and place.cls:
        raise UserError(
            "protocol.style.positions=alibi with pooling=cls: the CLS token has no distance to "
            "the others; use pooling=masked_mean"
        )
    of_slots = qkv.Style(
        qkv_dim=model.qkv_dim,
        qkv_bias=style.qkv_bias,
        out_bias=style.out_bias,
        initialise=init.ENCODER[style.init],
        alibi=alibi,
        positions=rotary.turning(style.positions, place.grid, cls=place.cls),
        grid=place.grid,
        cls=place.cls,
    )
    return luna.mixer(
        name,
        d_model=model.d_model,
        n_heads=model.n_heads,
        max_len=place.max_len,
        profile=place.profile,
        dropout=model.attention_dropout,
        seed=place.seed,
        layer=place.layer,
        n_layers=model.n_layers,
        style=of_slots,
        **options,
    )


class EncoderBlock(nn.Module):
    """x + drop(attention(norm x)), then x + MLP(norm x) with dropout after each of the MLP's
    layers; or with the norm behind each sum, norm(x + drop(attention(x))). A style may leave the
    MLP out."""

    def __init__(self, attention: dict[str, Any], model: Model, style: Style, place: SlotPlace):
        super().__init__()
        self.after = style.norm_place is NormPlace.after
        self.norm1 = norm(style, model.d_model)
        self.attention = mixer(attention, model, style, place)
        self.dropout = Dropout(model.dropout, tied=style.tied_dropout)
        self.norm2 = norm(style, model.d_model) if style.mlp else None
        self.mlp = _mlp(model, style) if style.mlp else None

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.after:
            x = self.norm1(x + self.dropout(self.attention(x, mask)), mask)
        else:
            x = x + self.dropout(self.attention(self.norm1(x, mask), mask))
        if self.mlp is None or self.norm2 is None:
            return x
        if self.after:
            return self.norm2(x + self.mlp(x), mask)
        return x + self.mlp(self.norm2(x, mask))


def _mlp(model: Model, style: Style) -> nn.Sequential:
    up, down = nn.Linear(model.d_model, model.mlp_dim), nn.Linear(model.mlp_dim, model.d_model)
    for linear in (up, down):
        init.ENCODER[style.init](linear)
    first, second = (Dropout(model.dropout, tied=style.tied_dropout) for _ in range(2))
    return nn.Sequential(up, nn.GELU(style.gelu.value), first, down, second)


class Encoder(nn.Module):
    """The blocks and, where each begins with its norm, a final one. Each layer's attention has its
    own random stream; a method that shares parameters between layers takes them from the first
    layer."""

    def __init__(self, attention: dict[str, Any], model: Model, style: Style, place: SlotPlace):
        super().__init__()
        blocks = [
            EncoderBlock(
                attention, model, style, place._replace(seed=place.seed + layer, layer=layer)
            )
            for layer in range(model.n_layers)
        ]
        apart = len(layers_of(attention)) or 1  # layers of a stack share with those of their entry
        for layer, block in enumerate(blocks):
            block.attention.tie(blocks[layer % apart].attention)
        self.blocks = nn.ModuleList(blocks)
        # How training computes a block otherwise than by calling it (lra/training/memory.py)
        self.around_block: Callable[[nn.Module, Tensor, Tensor | None], Tensor] | None = None
        before = style.norm_place is NormPlace.before
        self.norm = norm(style, model.d_model) if before else None
        self.mask_output = style.mask_output

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        for block in self.blocks:
            x = block(x, mask) if self.around_block is None else self.around_block(block, x, mask)
        if self.norm is not None:
            x = self.norm(x, mask)
        return x * mask.unsqueeze(-1) if self.mask_output and mask is not None else x
