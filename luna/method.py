"""What attentions and mixers have in common: a name, facts, a random stream, the registry."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from luna.errors import LunaError
from luna.tensors import autocast_off
from luna.traits import Paper, Rate, Traits

PROFILES = ("strict", "published", "official")


class Method(nn.Module):
    """A way to let the tokens of a sequence meet, with what is said of it.

    Profiles (an option of its place; a method's header says where its own differ):

        strict      the paper's method; padding neither sends nor receives, examples do not meet
        published   the code whose numbers the tables quote, with its quirks
        official    the code of google-research/long-range-arena (Tay et al., 2020)
    """

    name: str = "unregistered"
    # How it is shown, said by each class for itself: its name in words, if `name` is none; how its
    # tokens meet, a family of lra/looks.py; a marker of matplotlib, if it shall be a certain one.
    title: ClassVar[str] = ""
    family: ClassVar[str] = "other"
    marker: ClassVar[str] = ""
    paper: ClassVar[Paper]
    # Raised when its numbers change: old and new runs are then apart. See `version`.
    numerics: ClassVar[int] = 1
    # Options that came after the first runs, at the value that those had: it is the default, and
    # there an option is no part of a run's settings.
    added: ClassVar[dict[str, Any]] = {}
    complexity: ClassVar[str]  # of time, as printed by `lra list`, e.g. "O(n d e)"
    profiles: ClassVar[tuple[str, ...]] = ("strict",)  # those under which this method differs
    declared: ClassVar[Any] = Traits()  # luna/traits.py
    # Parameters that do not learn as others do, by patterns of their names such as "log_A".
    rates: ClassVar[dict[str, Rate]] = {}
    # Profile -> what this method leaves out of the code that the profile reproduces; in the record.
    differences_from_profile: ClassVar[dict[str, str]] = {}
    # A dataclass that holds the options, where the constructor takes them as **options.
    options_class: ClassVar[type | None] = None

    profile: str

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Read what a class states itself: how it is shown, and facts one by one
        (`has_matrix = False`), as plug-ins do that are older than `declared`."""
        super().__init_subclass__(**kwargs)
        for shown in ("title", "marker"):  # two methods that look the same could not be told apart
            if shown not in vars(cls):
                setattr(cls, shown, "")
        names = {field.name for field in dataclasses.fields(cls.declared)}
        if stated := {name: vars(cls)[name] for name in names & vars(cls).keys()}:
            cls.declared = cls.declared.but(**stated)

    def __init__(self, seed: int):
        super().__init__()
        self._seed = seed
        self._generators: dict[str, torch.Generator] = {}  # by device type
        self._saved_states: dict[str, Tensor] = {}
        self._settled: Any = None

    @classmethod
    def version(cls) -> int:
        """Of its numbers: each `numerics` above 1 counts, that of the class and of those that it
        derives from, so that one integer in a shared class tells all its methods apart."""
        return 1 + sum(vars(c).get("numerics", 1) - 1 for c in cls.__mro__)

    # ------------------------------------------------------------------ facts

    def _traits(self) -> Any:
        """What is true of this instance, where its options decide more than its class does."""
        names = {field.name for field in dataclasses.fields(self.declared)}
        stated = {name: vars(self)[name] for name in names & vars(self).keys()}
        return self.declared.but(**stated) if stated else self.declared

    def traits(self) -> Any:
        """What is true of this instance: asked once, for options stay as they are."""
        if self._settled is None:
            self._settled = self._traits()
        return self._settled

    @classmethod
    def effective_profile(cls, profile: str) -> str:
        """The profile under which this method runs: strict wherever it has no other."""
        if profile not in PROFILES:
            raise LunaError(f"profile must be one of {', '.join(PROFILES)}, got {profile!r}")
        orders = {"official": ("official", "published"), "published": ("published",)}
        return next((p for p in orders.get(profile, ()) if p in cls.profiles), "strict")

    def evaluation(self, device: str) -> str | None:
        """The name of the evaluation that runs on a type of device, for methods with several."""
        return None

    # ------------------------------------------------------------------ training

    def tie(self, first: Self) -> None:
        """Share parameters between layers: a backbone calls this on every layer's method, the first
        included, and hands it that of the first layer."""

    def after_step(self) -> None:
        """Called by the training loop after each optimiser step, for methods with a schedule."""

    def _precision(self, device: torch.device) -> contextlib.AbstractContextManager[None]:
        # Casting to float32 does not stop an enclosing autocast from running matmuls in half
        # precision.
        return autocast_off(device) if self.traits().full_precision else contextlib.nullcontext()


class Seeded(Method):
    """A method with a random stream of its own, which is saved with the state dict."""

    def generator(self, device: torch.device | str) -> torch.Generator:
        """This module's own random stream on `device`: seeded by its place, saved with the state
        dict."""
        kind = torch.device(device).type
        if kind == "meta":  # shapes without contents, nothing is drawn
            return None  # type: ignore[return-value]
        if kind not in self._generators:
            self._generators[kind] = torch.Generator(device).manual_seed(self._seed)
            if kind in self._saved_states:
                self._generators[kind].set_state(self._saved_states.pop(kind))
        return self._generators[kind]

    def get_extra_state(self) -> dict[str, Tensor]:
        return self._saved_states | {kind: g.get_state() for kind, g in self._generators.items()}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        # Kept until the device is used: a checkpoint from a GPU must load where there is none.
        self._generators.clear()
        self._saved_states = {kind: saved.cpu() for kind, saved in state.items()}


# ---------------------------------------------------------------------- the registry

_classes: dict[str, type[Method]] = {}  # filled by @register, when a method's file is imported
M = TypeVar("M", bound=type[Method])


def register(name: str) -> Callable[[M], M]:
    """Class decorator that makes an attention or a mixer the method of that name.

    name     by which `luna.build`, `luna.mixer` and `attention=<name>` find it
    returns  the decorator
    """

    def put(cls: M) -> M:
        if name in _classes and _classes[name].__module__ != cls.__module__:
            raise LunaError(
                f"attention '{name}' is already registered by {_classes[name].__module__}"
            )
        cls.name = name
        _classes[name] = cls
        return cls

    return put
