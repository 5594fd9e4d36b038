"""The encoder: pre-norm blocks whose attention slot takes any method of `luna`.

B batch   n tokens   E d_model   H heads   d head width   qkv_dim = H d
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

import luna
from lra.base.config import Model, Positions, Style, UserError
from lra.model import init, rotary
from luna.dropout import Dropout
from luna.heads import split_heads
from luna.local import LocalBranch


class SlotPlace(NamedTuple):
    """What an attention slot needs besides the model's sizes and style."""

    max_len: int  # including the CLS token
    profile: str
    seed: int  # of the first layer; each further layer adds 1
    grid: tuple[int, int] | None  # rows and columns of the tokens, on image tasks
    cls: bool  # position 0 holds the CLS token, outside of the grid
    layer: int = 0


class AttentionLayer(nn.Module):
    """One attention between its projections (q, k, v and out), and the optional local branch."""

    def __init__(self, attention: dict[str, Any], model: Model, style: Style, place: SlotPlace):
        super().__init__()
        options = dict(attention)
        name, dwc = options.pop("name"), options.pop("dwc", "none")
        self.n_heads, self.head_dim = model.n_heads, model.qkv_dim // model.n_heads
        initialise = init.ENCODER[style.init]

        projected = luna.get(name).projected(place.profile)
        parts = len(projected.replace("o", ""))
        # One product for q, k and v; each is initialised as a layer of its own.
        self.qkv = nn.Linear(model.d_model, parts * model.qkv_dim, bias=style.qkv_bias)
        initialise(self.qkv, parts=parts)
        self.attention = luna.build(
            name,
            n_heads=self.n_heads,
            head_dim=self.head_dim,
            max_len=place.max_len,
            profile=place.profile,
            dropout=model.attention_dropout,
            seed=place.seed,
            alibi=style.positions is Positions.alibi,
            layer=place.layer,
            n_layers=model.n_layers,
            **options,
        )
        if model.d_model != model.qkv_dim and (self.attention.needs_x or "o" not in projected):
            why = "reads the hidden states" if self.attention.needs_x else "projects no output"
            raise UserError(
                f"attention '{name}' {why}: all heads together must be as wide as the hidden "
                f"states, but model.qkv_dim={model.qkv_dim} and model.d_model={model.d_model}"
            )
        if style.positions is Positions.alibi and place.cls:
            raise UserError(
                "protocol.style.positions=alibi with pooling=cls: the CLS token has no distance to "
                "the others; use pooling=masked_mean"
            )
        self.turned = rotary.build(style.positions, self.attention, place.grid, cls=place.cls)
        self.local = None
        if dwc != "none":
            self.local = LocalBranch(
                dwc, self.n_heads, self.head_dim, grid=place.grid, cls=place.cls
            )
        self.out: nn.Module = nn.Identity()
        if "o" in projected:
            self.out = nn.Linear(model.qkv_dim, model.d_model, bias=style.out_bias)
            initialise(self.out)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (-1, self.n_heads, self.head_dim))  # (B, n, 3 or 2, H, d)
        strict = self.attention.profile == "strict"
        q, *k, v = split_heads(qkv, mask if strict else None)  # (B, H, n, d)
        q = self.turned(q)
        keys = self.turned(k[0]) if k else q
        hidden = x if self.attention.needs_x else None
        out = self.attention(q, keys, v, mask, hidden, zeroed=strict)
        if self.local is not None:
            out = out + self.local(v, mask)
        return self.out(out.transpose(1, 2).flatten(2))  # (B, n, E)


class EncoderBlock(nn.Module):
    """x + drop(attention(LN x)), then x + MLP(LN x) with dropout after each of the MLP's layers."""

    def __init__(self, attention: dict[str, Any], model: Model, style: Style, place: SlotPlace):
        super().__init__()
        self.norm1 = nn.LayerNorm(model.d_model, eps=style.ln_eps)
        self.attention = AttentionLayer(attention, model, style, place)
        self.dropout = Dropout(model.dropout)
        self.norm2 = nn.LayerNorm(model.d_model, eps=style.ln_eps)
        up, down = nn.Linear(model.d_model, model.mlp_dim), nn.Linear(model.mlp_dim, model.d_model)
        self.mlp = nn.Sequential(
            up, nn.GELU(style.gelu.value), Dropout(model.dropout), down, Dropout(model.dropout)
        )
        for linear in (up, down):
            init.ENCODER[style.init](linear)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x), mask))
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Module):
    """The blocks and a final LayerNorm. Each layer's attention has its own random stream; a method
    that shares parameters between layers takes them from the first layer."""

    def __init__(self, attention: dict[str, Any], model: Model, style: Style, place: SlotPlace):
        super().__init__()
        blocks = [
            EncoderBlock(
                attention, model, style, place._replace(seed=place.seed + layer, layer=layer)
            )
            for layer in range(model.n_layers)
        ]
        for block in blocks:
            block.attention.attention.tie(blocks[0].attention.attention)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(model.d_model, eps=style.ln_eps)
        self.mask_output = style.mask_output

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        for block in self.blocks:
            x = block(x, mask)
        x = self.norm(x)
        return x * mask.unsqueeze(-1) if self.mask_output and mask is not None else x
