"""The contract of an attention: what a method on q, k and v is given, gives, and says of itself.

Every method is one file, ``luna/attention/<name>.py``, holding one class decorated with
``@register("<name>")``; luna/registry.py finds and builds it.

Shapes, everywhere in this library:

    B batch   H heads   n sequence length   d width of q, k per head   e width of v per head (d_v)
    q, k (B, H, n, d)   v (B, H, n, e)   mask (B, n) bool, True = real token
    x (B, n, H*d) hidden states

Published codes give learned features projections of their own on the hidden states; here these
follow the backbone's, which as functions of the hidden states is the same.

In cross-attention keys and values are other tokens than the queries: k (B, H, m, d),
v (B, H, m, e), `mask` (B, n) marks the real queries and `key_mask` (B, m) the real keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from luna.errors import LunaError, in_network, positive
from luna.method import Seeded
from luna.tensors import HALF, Mask, zero_padded_rows, zero_padding
from luna.traits import AttentionTraits


@dataclass(frozen=True, kw_only=True)
class Slot:
    """The place of an attention: what it is built for."""

    n_heads: int  # its heads
    head_dim: int  # the width of q and k of a head
    max_len: int  # tokens of the longest sequence
    causal: bool = False  # no token sees what comes behind it
    profile: str = "strict"  # whose code it reproduces: strict, published or official
    dropout: float = 0.0  # on attention weights, by the methods that have them (uses_dropout)
    seed: int = 0  # of the method's own generator (random features, landmarks, hashes, graphs)
    alibi: bool = False  # scores fall with the distance: luna/attention/softmax.py
    normalise: str = "sum"  # what divides sums over features: sum, abs, rms (luna/linear.py)
    layer: int = 0  # of n_layers, for methods whose layers differ
    n_layers: int = 1  # of the network

    def __post_init__(self) -> None:
        positive("attention", n_heads=self.n_heads, head_dim=self.head_dim, max_len=self.max_len)
        in_network(self.dropout, self.layer, self.n_layers)


class Attention(Seeded):
    """A drop-in attention on per-head tensors. Projections belong to the caller.

    A method implements `attend`, and declares below what is true of it; the
    conformance suite holds it to each declaration, in both directions.
    """

    declared: ClassVar[AttentionTraits] = AttentionTraits()

    def __init__(self, slot: Slot):
        super().__init__(slot.seed)
        declared = self.declared
        if slot.causal and not declared.causal_form:
            raise LunaError(
                f"attention '{self.name}' has no causal form; "
                "methods that have one: luna.names(causal=True)"
            )
        if slot.alibi and not declared.alibi_form:
            raise LunaError(
                f"attention '{self.name}' has no ALiBi form, because it does not compute its "
                "weights one by one; softmax and kernelized have an ALiBi form"
            )
        if slot.normalise != "sum" and not declared.normalise_form:
            raise LunaError(
                f"attention '{self.name}' does not take normalise='{slot.normalise}': that is a "
                "choice of methods that divide sums over features, such as linear and luna"
            )
        self.slot = slot
        self.n_heads, self.head_dim, self.max_len = slot.n_heads, slot.head_dim, slot.max_len
        self.causal, self.normalise = slot.causal, slot.normalise
        self.profile = self.effective_profile(slot.profile)
        if slot.causal and declared.causal_if_strict and self.profile != "strict":
            raise LunaError(
                f"attention '{self.name}' has no causal form under profile={self.profile}: "
                f"{declared.causal_if_strict}; use profile=strict"
            )

    # ------------------------------------------------------------------ what a method implements

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        """(B, H, n, e). Under the strict profile padded rows of q, k, v are already zero and,
        unless the method says `full_precision = False`, the inputs are float32 or float64 and
        autocast is off."""
        raise NotImplementedError(f"{type(self).__name__} must implement attend()")

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        """The implied matrix (B, H, n, n), or (B, H, n, m) in cross-attention, where the mask is
        that of the keys; written from the definition and independent of attend()."""
        raise LunaError(f"attention '{self.name}' has no implied attention matrix")

    def cross(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Mask) -> Tensor:
        """attend() of a method with a `cross_form` where k and v are other tokens. As it stands for
        methods that read the mask for the keys alone; padded queries are the contract's business.
        """
        return self.attend(q, k, v, key_mask, None)

    def zeroes_padding(self, q: Tensor) -> bool:
        """Say whether attend() gives 0 at padding and no gradient from there, by itself."""
        return False

    def reads_half(self, q: Tensor) -> bool:
        """Say whether attend() takes q, k, v in half precision and computes in float32 itself."""
        return False

    @classmethod
    def projected(cls, profile: str) -> str:
        """The linear maps that stand around this method in a network: of q, k, v and o, the output.
        A method that names no k takes its queries for keys; one that names no q reads neither."""
        return "qkvo"

    @classmethod
    def letters(cls, profile: str, **options: Any) -> str:
        """`projected`, of a method whose options decide it."""
        return cls.projected(profile)

    def step(
        self, state: Any, q_t: Tensor, k_t: Tensor, v_t: Tensor, x_t: Tensor | None = None
    ) -> tuple[Any, Tensor]:
        """One token of the causal form: q_t, k_t (B, H, d), v_t (B, H, e), x_t (B, H d) for methods
        that need the hidden states."""
        tokens = [t.unsqueeze(2) for t in (q_t, k_t, v_t)]
        hidden = {} if x_t is None else {"x": x_t.unsqueeze(1)}
        state, out = self.steps(state, *tokens, **hidden)
        return state, out.squeeze(2)

    def steps(
        self,
        state: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask = None,
        x: Tensor | None = None,
    ) -> tuple[Any, Tensor]:
        """n tokens of the causal form, q, k (B, H, n, d), v (B, H, n, e), x (B, n, H d): the state
        after them and their outputs (B, H, n, e). A state is a tuple whose tensors begin with B,
        None at the start; padding may stand among the first tokens alone. See luna/streaming.py."""
        raise LunaError(
            f"attention '{self.name}' cannot stream: build it with causal=True; "
            "methods that have a causal form: luna.names(causal=True)"
        )

    # ------------------------------------------------------------------ what every method inherits

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask = None,
        x: Tensor | None = None,
        *,
        key_mask: Mask = None,
        zeroed: bool = False,
    ) -> Tensor:
        """Attend. With `key_mask`, or where q and k differ in length, k and v are another sequence.

        q         queries (B, H, n, d)
        k         keys (B, H, n, d), of another sequence (B, H, m, d)
        v         values (B, H, n, e), of another sequence (B, H, m, e)
        mask      (B, n) bool, True where a token, or a query, is real; None: all are
        x         hidden states (B, n, H d), for methods that read them
        key_mask  (B, m) bool, True where a key of another sequence is real
        zeroed    padded rows of q, k, v are 0 and their gradients are not used, as after
                  `luna.heads.split_heads`
        returns   (B, H, n, e) in the dtype of v
        """
        dtype = v.dtype
        q, k, v, x = self._enter(q, k, v, mask, x, key_mask, zeroed)
        crossed = key_mask is not None or q.shape[2] != k.shape[2]
        with self._precision(q.device):
            out = self.cross(q, k, v, key_mask) if crossed else self.attend(q, k, v, mask, x)
        done = self.profile != "strict" or (not crossed and self.zeroes_padding(q))
        return (out if done else zero_padding(out, mask)).to(dtype)

    def matrix(
        self,
        q: Tensor,
        k: Tensor,
        mask: Mask = None,
        x: Tensor | None = None,
        *,
        key_mask: Mask = None,
    ) -> Tensor:
        """The matrix A with forward(q, k, v) = A v. Its arguments are those of `forward`.

        returns  (B, H, n, m); under strict padded rows and columns are 0
        """
        q, k, _, x = self._enter(q, k, k, mask, x, key_mask)
        if not self.traits().has_matrix:
            how = f" under profile={self.profile} and normalise={self.normalise}"
            how *= self.declared.has_matrix  # else under none
            raise LunaError(f"attention '{self.name}' has no implied attention matrix{how}")
        keys = mask if key_mask is None else key_mask
        with self._precision(q.device):
            A = self._matrix(q, k, keys, x)
        if self.profile == "strict":
            A = zero_padding(zero_padding(A, mask).mT, keys).mT
        return A

    def _enter(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask = None,
        x: Tensor | None = None,
        key_mask: Mask = None,
        zeroed: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Inputs that have been checked, in the precision that the method asks for; under strict
        padded rows become 0 before anything else."""
        facts = self.traits()
        if facts.needs_x and x is None:
            raise LunaError(
                f"attention '{self.name}' needs the hidden states: forward(q, k, v, mask, x=x)"
            )
        self._check_inputs(q, k, v, mask, x, key_mask)
        keys = mask if key_mask is None else key_mask
        if self.profile == "strict" and not zeroed:
            q, k, v = zero_padding(q, mask), zero_padding(k, keys), zero_padding(v, keys)
        if self.profile == "strict" and x is not None:
            x = zero_padded_rows(x, mask)
        if facts.full_precision and q.dtype in HALF and not self.reads_half(q):
            q, k, v = q.float(), k.float(), v.float()
        if facts.full_precision and x is not None and x.dtype in HALF:
            x = x.float()
        return q, k, v, x

    def _check_inputs(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None, key_mask: Mask
    ) -> None:
        """Refuse inputs that do not fit: kernels index raw memory. Only shapes, dtypes and devices
        are read, in some microseconds, on the meta device and in torch.compile too."""
        H, d = self.n_heads, self.head_dim
        q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
        fits = len(q_shape) == len(k_shape) == len(v_shape) == 4
        if fits:
            (B, _, n, _), m = q_shape, k_shape[2]
            fits = (q_shape, k_shape, v_shape[:3]) == ((B, H, n, d), (B, H, m, d), (B, H, m))
        if not fits or 0 in (B, n, m, v_shape[3]):
            raise LunaError(
                f"attention '{self.name}' was built for n_heads={H}, head_dim={d}: q must be "
                f"(B, {H}, n, {d}), k (B, {H}, m, {d}) and v (B, {H}, m, e), none of them empty; "
                f"got q {tuple(q_shape)}, k {tuple(k_shape)}, v {tuple(v_shape)}"
            )
        if not (q.dtype == k.dtype == v.dtype and q.is_floating_point()):
            raise LunaError(
                f"q, k and v must have one floating-point dtype, got {q.dtype}, {k.dtype} and "
                f"{v.dtype}: convert them with .to(dtype)"
            )
        device = q.device
        for name, t in (("k", k), ("v", v), ("mask", mask), ("key_mask", key_mask), ("x", x)):
            if t is not None and t.device != device:
                raise LunaError(f"{name} is on {t.device} and q on {device}: move one of them")
        if self.traits().bound_to_max_len and max(n, m) > self.max_len:
            raise LunaError(
                f"{self.name} was built for max_len={self.max_len} tokens and got "
                f"{max(n, m)}: build it with a larger max_len"
            )
        if n != m or key_mask is not None:
            self._check_crossing(n, m)
        if n != m and mask is not None and key_mask is None:
            raise LunaError(
                f"one mask cannot mark {n} queries and {m} keys: give key_mask (B, m) for the "
                "keys, and mask (B, n) for the queries where some of them are padding"
            )
        for name, t, letter, length in (("mask", mask, "n", n), ("key_mask", key_mask, "m", m)):
            if t is not None and (t.dtype != torch.bool or t.shape != (B, length)):
                raise LunaError(
                    f"{name} must be bool of shape (B, {letter}) = ({B}, {length}), True = real "
                    f"token; got {t.dtype} of shape {tuple(t.shape)}"
                )
        if x is not None and (x.dim() != 3 or x.shape[:2] != (B, n) or not x.is_floating_point()):
            raise LunaError(
                f"x must be hidden states (B, n, width) = ({B}, {n}, width), got {tuple(x.shape)} "
                f"of {x.dtype}"
            )

    def _check_crossing(self, n: int, m: int) -> None:
        """Refuse n queries with m keys of another sequence where there is no such form."""
        if not self.traits().cross_form:
            how = ": q, k and v must be of one sequence, without a key_mask"
        elif self.causal:
            how = " with causal=True: its keys must be the tokens of its queries"
        elif self.slot.alibi:
            how = " with alibi=True: distances are those within one sequence"
        elif self.profile != "strict":
            how = f" under profile={self.profile}: build it with profile=strict"
        else:
            return  # before n and m are printed: in torch.compile that would fix their values
        raise LunaError(
            f"attention '{self.name}' has no cross-attention ({n} queries, {m} keys){how}"
        )

    @property
    def dropout_p(self) -> float:
        """The probability with which weights are dropped now."""
        return self.slot.dropout if self.training else 0.0

    def extra_repr(self) -> str:
        size = f"heads={self.n_heads}, head_dim={self.head_dim}, max_len={self.max_len}"
        return f"{size}, profile={self.profile}"


class Redrawn(Attention):
    """Random objects drawn in every forward: new ones in training; under strict the same ones in
    every evaluation, which are the model's own: they are in its state dict. Outside strict,
    evaluation draws anew as well. Streams are on the CPU: a model draws alike on every device. A
    method of this kind declares draws=True beside the facts of its other parents."""

    def __init__(self, slot: Slot, **settings: Any):  # those of a kernel attention beside it
        super().__init__(slot, **settings)
        self._generators["evaluation"] = torch.Generator().manual_seed(slot.seed)

    def stream(self) -> torch.Generator:
        if self.training or self.profile != "strict":
            return self.generator("cpu")
        start = torch.Generator()
        start.set_state(self.get_extra_state()["evaluation"])
        return start
