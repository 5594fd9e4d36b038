"""Counting without torch's compiler, whose import takes longer than the counting.

The functions that torch runs on the meta device, and its FLOP counter, are marked as not to be
traced by torch.compile. The mark is made at their first call. To make it torch imports the whole
compiler: 2.7 seconds of CPU. While a network is counted nothing is compiled, so no mark is needed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
MARK = "__dynamo_disable"  # the attribute in which torch/_compile.py keeps a marked function


class _Unmarked(ModuleType):
    """Stands for the compiler while nothing asks for more of it than a mark."""

    def __init__(self) -> None:
        super().__init__(COMPILER)
        self.functions: list[Callable[..., Any]] = []

    def disable(self, function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        self.functions.append(function)
        return function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by the import system
            raise AttributeError(name)
        sys.modules.pop(COMPILER, None)
        return getattr(importlib.import_module(COMPILER), name)


@contextmanager
def without_compiler() -> Iterator[None]:
    """Leave the compiler out of this process inside the block, unless it is there already."""
    if COMPILER in sys.modules:
        yield
        return
    unmarked = sys.modules[COMPILER] = _Unmarked()
    try:
        yield
    finally:
        if sys.modules.get(COMPILER) is unmarked:
            del sys.modules[COMPILER]
        for function in unmarked.functions:  # marked at the next call
            vars(function).pop(MARK, None)
