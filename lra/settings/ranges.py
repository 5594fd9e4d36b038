"""Hold a run to the ranges of its settings, each of which stands beside its field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from lra.base.errors import UserError
from lra.base.limits import Range
from lra.settings.run import Run
from luna.around import Around
from luna.errors import LunaError

# Settings of an attention's place, and where a run decides them.
DECIDED = {
    "n_heads": "model.n_heads",
    "head_dim": "model.qkv_dim",
    "d_model": "model.d_model",
    "max_len": "protocol.data.pad_to",
    "profile": "protocol.profile",
    "dropout": "model.attention_dropout",
    "seed": "seed",
    "causal": "the task",
    "alibi": "protocol.style.positions=alibi",
    "n_layers": "model.n_layers",
    "layer": "the place of its block",
    "style": "protocol.style",
}


def check_ranges(run: Run) -> None:
    """UserError for a setting that is out of its range."""
    for key, value, limit in sorted(limits_of(run), key=lambda found: found[2].joint):
        if value is not None and not limit.allowed(value, run):
            must = limit.words.format(run=run)
            word = value.name if isinstance(value, Enum) else value
            raise UserError(f"{key}={word} is out of range: it must be {must}")
    try:  # its own options are checked by luna.build
        Around.split(run.attention)
    except LunaError as error:
        raise UserError(f"attention.{error}") from error
    for name in run.attention.keys() & DECIDED.keys():
        raise UserError(f"attention.{name} cannot be set here: {DECIDED[name]} decides it")


def limits_of(group: Any, above: str = "") -> Iterator[tuple[str, Any, Range]]:
    """Each range below a group of settings: the setting's dotted name, its value, the range."""
    for place in fields(group):
        key, value = above + place.name, getattr(group, place.name)
        for limit in place.metadata.get("ranges", ()):
            yield key, value, limit
        if is_dataclass(value):
            yield from limits_of(value, f"{key}.")
