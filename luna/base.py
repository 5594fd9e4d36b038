"""The attention contract: what a method is given, gives, and declares of itself.

Every method is one file, ``luna/attention/<name>.py``, holding one class decorated with
``@register("<name>")``; luna/registry.py finds and builds it.

Shapes, everywhere in this library:

    B batch   H heads   n sequence length   d width of q, k per head   e width of v per head (d_v)
    q, k (B, H, n, d)   v (B, H, n, e)   mask (B, n) bool, True = real token
    x (B, n, H*d) hidden states

Profiles (options of the slot; a method's header says where its own differ):

    strict      the paper's method; padding neither sends nor receives, examples do not meet
    published   the code whose numbers the tables quote, with its quirks
    official    the code of google-research/long-range-arena (Tay et al., 2020)

Published codes give learned features projections of their own on the hidden states; here these
follow the backbone's, which as functions of the hidden states is the same.

In cross-attention keys and values are other tokens than the queries: k (B, H, m, d),
v (B, H, m, e), `mask` (B, n) marks the real queries and `key_mask` (B, m) the real keys.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

PROFILES = ("strict", "published", "official")
Mask = Tensor | None  # (B, n) bool, True = real token; None: all are


class LunaError(ValueError):
    """A mistake of the caller; the message is one sentence that says what to do."""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """The place in a backbone that an attention is built for."""

    n_heads: int
    head_dim: int
    max_len: int
    causal: bool = False
    profile: str = "strict"
    dropout: float = 0.0  # on attention weights, by the methods that have them (uses_dropout)
    seed: int = 0  # of the method's own generator (random features, landmarks, hashes, graphs)
    alibi: bool = False  # scores fall with the distance: luna/attention/softmax.py
    normalise: str = "sum"  # what divides sums over features: sum, abs, rms (luna/linear.py)
    layer: int = 0  # of n_layers, for methods whose layers differ
    n_layers: int = 1

    def __post_init__(self) -> None:
        positive("attention", n_heads=self.n_heads, head_dim=self.head_dim, max_len=self.max_len)
        if not 0 <= self.dropout < 1:
            raise LunaError(f"dropout={self.dropout} is out of range: it must be in [0, 1)")


@dataclass(frozen=True)
class Paper:
    """Where a method comes from; `lra list` and docs/attentions.md are made of these."""

    title: str
    year: int
    url: str


class Attention(nn.Module):
    """A drop-in attention on per-head tensors. Projections belong to the caller.

    A method implements `attend`, and declares below what is true of it; the
    conformance suite holds it to each declaration, in both directions.
    """

    name: ClassVar[str] = "unregistered"
    paper: ClassVar[Paper]
    complexity: ClassVar[str]  # of time, as printed by `lra list`, e.g. "O(n d e)"
    profiles: ClassVar[tuple[str, ...]] = ("strict",)  # those under which this method differs

    causal_form: ClassVar[bool] = False  # causal=True and step() exist
    causal_if_strict: ClassVar[str] = ""  # why under no other profile, where that is so
    alibi_form: ClassVar[bool] = False  # alibi=True exists
    normalise_form: ClassVar[bool] = False  # the slot chooses what divides its sums over features
    cross_form: ClassVar[bool] = False  # keys and values may be other tokens than the queries
    bound_to_max_len: ClassVar[bool] = False  # parameters belong to positions: n <= max_len
    needs_x: ClassVar[bool] = False  # forward needs the hidden states x
    uses_dropout: ClassVar[bool] = False  # slot.dropout acts on its weights
    has_matrix: ClassVar[bool] = True  # an implied attention matrix exists: _matrix()
    row_stochastic: ClassVar[bool] = True  # constant values come out unchanged
    convex: ClassVar[bool] = True  # outputs lie within the values' range
    equivariant: ClassVar[bool] = True  # permuting tokens permutes outputs
    mixes_heads: bool = False  # a head's output depends on the other heads
    layers_differ: ClassVar[bool] = False  # by the slot's layer
    compares: bool = True  # queries with keys; options may decide it
    linear_in_n: ClassVar[bool] = True  # its FLOPs grow linearly, else quadratically
    full_precision: ClassVar[bool] = True  # float32 with autocast off; False keeps half precision
    # Conformance tests that do not apply, short name -> one sentence why: {"step": "..."}
    exempt: ClassVar[dict[str, str]] = {}
    # Profile -> what this method leaves out of the code that the profile reproduces; in the record.
    differences_from_profile: ClassVar[dict[str, str]] = {}

    # A dataclass that holds the options, where the constructor takes them as **options.
    options_class: ClassVar[type | None] = None
    # Options that are gone, at the value that is left: settings of earlier runs hold them.
    former_options: ClassVar[dict[str, Any]] = {}

    def __init__(self, slot: Slot):
        super().__init__()
        if slot.causal and not self.causal_form:
            raise LunaError(
                f"attention '{self.name}' has no causal form; "
                "methods that have one: luna.names(causal=True)"
            )
        if slot.alibi and not self.alibi_form:
            raise LunaError(
                f"attention '{self.name}' has no ALiBi form, because it does not compute its "
                "weights one by one; softmax and kernelized have an ALiBi form"
            )
        if slot.normalise != "sum" and not self.normalise_form:
            raise LunaError(
                f"attention '{self.name}' does not take normalise='{slot.normalise}': that is a "
                "choice of methods that divide sums over features, such as linear and luna"
            )
        self.slot = slot
        self.n_heads, self.head_dim, self.max_len = slot.n_heads, slot.head_dim, slot.max_len
        self.causal, self.normalise = slot.causal, slot.normalise
        self.profile = self.effective_profile(slot.profile)
        if slot.causal and self.causal_if_strict and self.profile != "strict":
            raise LunaError(
                f"attention '{self.name}' has no causal form under profile={self.profile}: "
                f"{self.causal_if_strict}; use profile=strict"
            )
        self._generators: dict[str, torch.Generator] = {}  # by device type
        self._saved_states: dict[str, Tensor] = {}

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

    @classmethod
    def projected(cls, profile: str) -> str:
        """The linear maps that a backbone puts around this method: of q, k, v and o, the output.
        Without k its keys are its queries."""
        return "qkvo"

    def evaluation(self, device: str) -> str | None:
        """The name of the evaluation that runs on a type of device, for methods with several."""
        return None

    def step(self, state: Any, q_t: Tensor, k_t: Tensor, v_t: Tensor) -> tuple[Any, Tensor]:
        """One token of the causal form: q_t, k_t (B, H, d), v_t (B, H, e)."""
        state, out = self.steps(state, *(t.unsqueeze(2) for t in (q_t, k_t, v_t)))
        return state, out.squeeze(2)

    def steps(
        self, state: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask = None
    ) -> tuple[Any, Tensor]:
        """n tokens of the causal form, q, k (B, H, n, d), v (B, H, n, e): the state after them and
        their outputs (B, H, n, e). A state is a tuple whose tensors begin with B, None at the
        start; padding may stand among the first tokens alone. See luna/streaming.py."""
        raise LunaError(
            f"attention '{self.name}' cannot stream: build it with causal=True; "
            "methods that have a causal form: luna.names(causal=True)"
        )

    def tie(self, first: Attention) -> None:
        """Share parameters between layers: a backbone calls this on every layer's attention, the
        first included, and hands it that of the first layer."""

    def after_step(self) -> None:
        """Called by the training loop after each optimiser step, for methods with a schedule."""

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
        """(B, H, n, e) in the dtype of v. `mask` alone marks the real tokens of one sequence. With
        `key_mask`, or where q and k differ in length, k and v are another sequence: then `mask`
        marks the real queries and `key_mask` the real keys. `zeroed`: padded rows of q, k, v are 0
        and their gradients are not used, as `luna.heads.split_heads` has it."""
        if self.needs_x and x is None:
            raise LunaError(
                f"attention '{self.name}' needs the hidden states: forward(q, k, v, mask, x=x)"
            )
        dtype = v.dtype
        q, k, v = self._enter(q, k, v, mask, x, key_mask, zeroed)
        if x is not None and mask is not None and self.profile == "strict":
            x = x.masked_fill(~mask.unsqueeze(-1), 0)
        crossed = key_mask is not None or q.shape[2] != k.shape[2]
        with self._precision(q):
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
        """The matrix A (B, H, n, m) with forward(q, k, v) = A v; padded rows and columns are 0
        under strict."""
        q, k, _ = self._enter(q, k, k, mask, x, key_mask)
        if not self.has_matrix:
            how = f" under profile={self.profile} and normalise={self.normalise}"
            how *= type(self).has_matrix  # else under none
            raise LunaError(f"attention '{self.name}' has no implied attention matrix{how}")
        keys = mask if key_mask is None else key_mask
        with self._precision(q):
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
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs that have been checked, in the precision that the method asks for; under strict
        padded rows become 0 before anything else."""
        self._check_inputs(q, k, v, mask, x, key_mask)
        keys = mask if key_mask is None else key_mask
        if self.profile == "strict" and not zeroed:
            q, k, v = zero_padding(q, mask), zero_padding(k, keys), zero_padding(v, keys)
        if self.full_precision and q.dtype in (torch.float16, torch.bfloat16):
            q, k, v = q.float(), k.float(), v.float()
        return q, k, v

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
        if self.bound_to_max_len and max(n, m) > self.max_len:
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
        if x is not None and (x.dim() != 3 or x.shape[:2] != (B, n)):
            raise LunaError(
                f"x must be hidden states (B, n, width) = ({B}, {n}, width), got {tuple(x.shape)}"
            )

    def _check_crossing(self, n: int, m: int) -> None:
        """Refuse n queries with m keys of another sequence where there is no such form."""
        if not self.cross_form:
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

    def _precision(self, q: Tensor) -> contextlib.AbstractContextManager:
        # Casting to float32 does not stop an enclosing autocast from running matmuls in half
        # precision.
        return autocast_off(q.device) if self.full_precision else contextlib.nullcontext()

    @property
    def dropout_p(self) -> float:
        """The probability with which weights are dropped now."""
        return self.slot.dropout if self.training else 0.0

    def generator(self, device: torch.device | str) -> torch.Generator:
        """This module's own random stream on `device`: seeded by the slot, saved with the state
        dict."""
        kind = torch.device(device).type
        if kind == "meta":  # shapes without contents, nothing is drawn
            return None  # type: ignore[return-value]
        if kind not in self._generators:
            self._generators[kind] = torch.Generator(device).manual_seed(self.slot.seed)
            if kind in self._saved_states:
                self._generators[kind].set_state(self._saved_states.pop(kind))
        return self._generators[kind]

    def get_extra_state(self) -> dict[str, Tensor]:
        return self._saved_states | {kind: g.get_state() for kind, g in self._generators.items()}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        # Kept until the device is used: a checkpoint from a GPU must load where there is none.
        self._generators.clear()
        self._saved_states = {kind: saved.cpu() for kind, saved in state.items()}

    @classmethod
    def effective_profile(cls, profile: str) -> str:
        """The profile under which this method runs: strict wherever it has no other."""
        if profile not in PROFILES:
            raise LunaError(f"profile must be one of {', '.join(PROFILES)}, got {profile!r}")
        orders = {"official": ("official", "published"), "published": ("published",)}
        return next((p for p in orders.get(profile, ()) if p in cls.profiles), "strict")

    def extra_repr(self) -> str:
        size = f"heads={self.n_heads}, head_dim={self.head_dim}, max_len={self.max_len}"
        return f"{size}, profile={self.profile}"


class Redrawn(Attention):
    """Random objects drawn in every forward: new ones in training; under strict the same ones in
    every evaluation, which are the model's own: they are in its state dict. Outside strict,
    evaluation draws anew as well. Streams are on the CPU: a model draws alike on every device."""

    def __init__(self, slot: Slot):
        super().__init__(slot)
        self._generators["evaluation"] = torch.Generator().manual_seed(slot.seed)

    def stream(self) -> torch.Generator:
        if self.training or self.profile != "strict":
            return self.generator("cpu")
        start = torch.Generator()
        start.set_state(self.get_extra_state()["evaluation"])
        return start


def zero_padding(t: Tensor, mask: Mask) -> Tensor:
    """t (B, H, n, .) with 0 at padding, whatever stands there: 0 * NaN would be NaN."""
    return t if mask is None else t.masked_fill(~mask[:, None, :, None], 0)


def at_least(method: str, least: float, **options: float | None) -> None:
    """Refuse options below a limit; None stands for a default."""
    for name, value in options.items():
        if value is not None and value < least:
            raise LunaError(f"{method}.{name} must be at least {least}, got {value}")


def positive(method: str, **options: float) -> None:
    """Refuse options that are not greater than 0."""
    for name, value in options.items():
        if value <= 0:
            raise LunaError(f"{method}.{name} must be greater than 0, got {value}")


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep torch.compile out of a function. torch's own decorator imports the compiler at once,
    which takes longer than everything else that listing the methods needs."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(function)(*arguments)
        return function(*arguments)

    return call


def autocast_off(device: torch.device) -> contextlib.AbstractContextManager:
    """Full precision inside, whatever surrounds it; meta has no autocast to switch off."""
    # Not torch.amp.is_autocast_available: torch.compile cannot trace it before torch 2.13.
    if device.type == "meta":
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)


# ---------------------------------------------------------------------- the registry

_classes: dict[str, type[Attention]] = {}  # filled by @register, when a method's file is imported


def register(name: str) -> Callable[[type[Attention]], type[Attention]]:
    """Class decorator that makes a subclass of `Attention` the method of that name."""

    def put(cls: type[Attention]) -> type[Attention]:
        if name in _classes and _classes[name].__module__ != cls.__module__:
            raise LunaError(
                f"attention '{name}' is already registered by {_classes[name].__module__}"
            )
        cls.name = name
        _classes[name] = cls
        return cls

    return put


def nearest(word: str, names: Iterable[str]) -> str:
    """The tail of an error message: the closest names, or all of them."""
    names = sorted(names)
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; known: {', '.join(names) or 'none'}"
