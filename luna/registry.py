"""Methods by their names, and their options.

A method's file name is its entry: nothing is imported until a method is asked for by name, and a
package outside can add methods through the entry-point group ``luna.attention``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import pkgutil
import sys
import types
import typing
from typing import Any, Literal

from luna.base import Attention, LunaError, Slot, _classes, nearest

ENTRY_POINTS = "luna.attention"


def names(*, causal: bool = False) -> list[str]:
    """Every method that can be built; with `causal`, those that have a causal form (imports them
    all)."""
    from luna import attention

    files = {m.name for m in pkgutil.iter_modules(attention.__path__) if m.name[0] != "_"}
    every = files | set(_plugins(*sys.path)) | set(_classes)
    return sorted(n for n in every if not causal or get(n).causal_form)


def get(name: str) -> type[Attention]:
    """The class of a method, imported on first use."""
    if name in _classes:
        return _classes[name]
    if name not in names():
        raise LunaError(f"unknown attention '{name}'{nearest(name, names())}")
    plugin = _plugins(*sys.path).get(name)
    where = plugin.value if plugin else f"luna/attention/{name}.py"
    try:
        plugin.load() if plugin else importlib.import_module(f"luna.attention.{name}")
    except Exception as error:  # whatever a broken file raises: say which file it is
        raise LunaError(
            f"attention '{name}' cannot be imported from {where}: {type(error).__name__}: {error}"
        ) from error
    if name not in _classes:
        raise LunaError(f"{where} holds no class decorated with @register({name!r})")
    return _classes[name]


def build(name: str, *, n_heads: int, head_dim: int, max_len: int, **settings: Any) -> Attention:
    """Build the attention `name` for a slot of the given size. Other settings are those of `Slot`,
    such as causal, and the method's own options."""
    cls, hints = get(name), typing.get_type_hints(Slot)
    check_options(name, {key: value for key, value in settings.items() if key not in hints})
    settings |= {"n_heads": n_heads, "head_dim": head_dim, "max_len": max_len}
    slot = {key: value for key, value in settings.items() if key in hints}
    for key, value in slot.items():
        if not _fits(value, hints[key]):
            raise LunaError(f"{key} must be {_spell(hints[key])}, got {value!r}")
    options = {key: settings[key] for key in settings.keys() - hints.keys()}
    return cls(Slot(**slot), **{k: v for k, v in options.items() if not _former(cls, k, v)})


def options(name: str) -> dict[str, inspect.Parameter]:
    """The method's own options: the keyword-only parameters of its constructor."""
    parameters = inspect.signature(_options_of(name)).parameters.values()
    return {p.name: p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def _options_of(name: str) -> Any:
    cls: Any = get(name)
    return (cls.options_class or cls).__init__


def check_options(name: str, values: dict[str, Any]) -> None:
    """Refuse an unknown option or a value of the wrong type; constructors know the ranges."""
    parameters = options(name)
    hints = typing.get_type_hints(_options_of(name))
    for key, value in values.items():
        if _former(get(name), key, value):
            continue
        if key not in parameters:
            raise LunaError(f"attention '{name}' has no option '{key}'{nearest(key, parameters)}")
        if not _fits(value, hints.get(key, Any)):
            raise LunaError(f"{name}.{key} must be {_spell(hints[key])}, got {value!r}")


def _former(cls: type[Attention], key: str, value: Any) -> bool:
    """Whether an option is gone, and has the value that is left."""
    return key in cls.former_options and cls.former_options[key] == value


@functools.cache
def _plugins(*path: str) -> dict[str, importlib.metadata.EntryPoint]:
    return {e.name: e for e in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    origin = typing.get_origin(hint)
    if origin is Literal:
        return value in typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, h) for h in typing.get_args(hint))
    kinds = (int, float) if hint is float else origin or hint
    return isinstance(value, kinds) and (hint is bool or not isinstance(value, bool))


def _spell(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(repr(a) for a in typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(_spell(h) for h in typing.get_args(hint))
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))
