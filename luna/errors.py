"""What a mistake of the caller is answered with: one sentence that says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LunaError(ValueError):
    """A mistake of the caller; the message is one sentence that says what to do."""


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


def in_network(dropout: float, layer: int, n_layers: int) -> None:
    """Refuse what no place in a network has."""
    if not 0 <= dropout < 1:
        raise LunaError(f"dropout={dropout} is out of range: it must be in [0, 1)")
    if not 0 <= layer < n_layers:
        raise LunaError(
            f"layer={layer} is out of range: it must be in [0, n_layers), and n_layers={n_layers}"
        )


def nearest(word: str, names: Iterable[str]) -> str:
    """The tail of an error message: the closest names, or all of them."""
    names = sorted(names)
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; known: {', '.join(names) or 'none'}"
