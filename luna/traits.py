"""What a method says of itself: frozen facts, each held to by the conformance suite in both
directions. A property that is declared must hold, and one that is denied must fail.

A class states its facts once, from those of its parent:

    declared = Attention.declared.but(convex=False, row_stochastic=False)

and where options decide, an instance says so in `_traits`:

    def _traits(self) -> AttentionTraits:
        return self.declared.but(convex=not self.signed)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from luna.errors import LunaError, nearest


@dataclass(frozen=True)
class Paper:
    """Where a method comes from; `lra list` and docs/attentions.md are made of these."""

    title: str  # as printed
    year: int  # in which it was first public
    url: str  # of its page


# An idle parameter of every method that divides by a softmax over the keys.
KEY_BIAS = {
    "qkv.bias.k": "what is added to all keys adds the same to all scores of a query, and a softmax "
    "does not see it"
}


@dataclass(frozen=True)
class Rate:
    """How parameters of a method are trained that do not learn as others do."""

    highest: float | None = None  # of their schedule, which is scaled down to it
    decay: bool = True  # weight decay acts on them


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What may be true of any method that lets tokens meet."""

    causal_form: bool = False  # causal=True and steps() exist
    bound_to_max_len: bool = False  # parameters belong to positions: n <= max_len
    uses_dropout: bool = False  # the dropout of its place acts inside it
    # A call in training draws from a random stream, beside dropout; of a class: some options do
    draws: bool = False
    equivariant: bool = True  # permuting tokens permutes outputs
    layers_differ: bool = False  # by the layer of its place
    linear_in_n: bool = True  # its FLOPs grow linearly, else quadratically
    full_precision: bool = True  # float32 with autocast off; False keeps half precision
    holes_are_time: bool = False  # padding between two tokens counts as distance between them
    # Patterns of parameters that may have slices without any gradient -> one sentence why.
    idle: Mapping[str, str] = field(default_factory=dict)
    # Conformance tests that do not apply, short name -> one sentence why: {"step": "..."}
    exempt: Mapping[str, str] = field(default_factory=dict)

    def but(self, **changes: Any) -> Self:
        """The same facts with some changed."""
        known = {f.name for f in dataclasses.fields(self)}
        for name in changes:
            if name not in known:
                raise LunaError(f"there is no trait '{name}'{nearest(name, known)}")
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, kw_only=True)
class AttentionTraits(Traits):
    """What may be true of a method on q, k and v besides."""

    causal_if_strict: str = ""  # why its causal form is under no other profile, where that is so
    alibi_form: bool = False  # alibi=True exists
    normalise_form: bool = False  # the slot chooses what divides its sums over features
    cross_form: bool = False  # keys and values may be other tokens than the queries
    needs_x: bool = False  # forward needs the hidden states x
    has_matrix: bool = True  # an implied attention matrix exists: _matrix()
    row_stochastic: bool = True  # constant values come out unchanged
    convex: bool = True  # outputs lie within the values' range
    mixes_heads: bool = False  # a head's output depends on the other heads
    compares: bool = True  # queries with keys

    def __post_init__(self) -> None:
        if self.convex and not self.row_stochastic:
            raise LunaError(
                "convex=True contradicts row_stochastic=False: an average of equal values is that "
                "value, so declare convex=False too"
            )
        if self.needs_x and self.cross_form:
            raise LunaError(
                "needs_x=True contradicts cross_form=True: with keys of another sequence there are "
                "no hidden states of it"
            )
        if self.causal_if_strict and not self.causal_form:
            raise LunaError("causal_if_strict is about a causal form: declare causal_form=True too")
