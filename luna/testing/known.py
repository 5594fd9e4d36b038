"""Methods that are known for the length of a block."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from luna.method import Method, _classes, register


@contextmanager
def registered(**classes: type[Method]) -> Iterator[None]:
    """Know these classes by their names for the length of a block: `with registered(foo=Foo):`.
    What else the block registers, as by importing a file of its own, is forgotten with them."""
    before = dict(_classes)
    for name, cls in classes.items():
        _classes.pop(name, None)
        register(name)(cls)
    try:
        yield
    finally:
        # A file of ours that the block was the first to ask for is not imported again.
        ours = {name: cls for name, cls in _classes.items() if _is_ours(name, cls)}
        _classes.clear()
        _classes.update(ours | before)


def _is_ours(name: str, cls: type[Method]) -> bool:
    files = (f"luna.attention.{name}", f"luna.mixers.{name}")
    return cls.__module__ in files and cls.__module__ in sys.modules
