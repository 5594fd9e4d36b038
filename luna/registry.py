"""Methods by their names, and their options.

A method's file name is its entry: nothing is imported until a method is asked for by name, and a
package outside can add methods through the entry-point group ``luna.attention``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import math
import pkgutil
import sys
import types
import typing
from typing import Any, Literal

from luna.around import Around
from luna.contract import Attention, Slot
from luna.errors import LunaError, nearest
from luna.method import Method, _classes
from luna.mixing import Layered, Mixer, Place
from luna.qkv import QKV, Style

TAKEN = "{} names a method '{}', as one of luna is named: give it another name"
ENTRY_POINTS = "luna.attention"  # of plug-ins, attentions and mixers


def names(*, causal: bool = False) -> list[str]:
    """Every method that can be built, attentions and mixers.

    causal   those alone that have a causal form, for which all are imported
    returns  their names, sorted
    """
    every = {*_files(), *_plugins(*sys.path), *_classes}
    return sorted(n for n in every if not causal or get(n).declared.causal_form)


def get(name: str) -> type[Method]:
    """The class of a method, imported on first use.

    name     one of `luna.names()`
    returns  a subclass of `Attention` or of `Mixer`
    """
    if name in _classes:
        return _refuse_disguise(name, _classes[name])
    if name not in names():
        raise LunaError(f"unknown attention '{name}'{nearest(name, names())}")
    plugin = _plugins(*sys.path).get(name)
    module = _files().get(name, "")
    if plugin and module:
        raise LunaError(TAKEN.format(plugin.value, name))
    where = plugin.value if plugin else f"{module.replace('.', '/')}.py"
    try:
        plugin.load() if plugin else importlib.import_module(module)
    except Exception as error:  # whatever a broken file raises: say which file it is
        raise LunaError(
            f"attention '{name}' cannot be imported from {where}: {type(error).__name__}: {error}"
        ) from error
    if name not in _classes:
        raise LunaError(f"{where} holds no class decorated with @register({name!r})")
    return _refuse_disguise(name, _classes[name])


def _refuse_disguise(name: str, cls: type[Method]) -> type[Method]:
    """Give the class, unless another package has named it as a method of luna: its runs would have
    that method's name and code hash."""
    module = cls.__module__
    if module not in (f"luna.attention.{name}", f"luna.mixers.{name}") and name in _files():
        raise LunaError(TAKEN.format(module, name))
    return cls


def build(name: str, *, n_heads: int, head_dim: int, max_len: int, **settings: Any) -> Attention:
    """Build an attention, a function of q, k, v.

    name      a method of `luna.names()` that is an attention
    n_heads   its heads
    head_dim  the width of q and k of a head
    max_len   tokens of the longest sequence
    settings  those of `Slot`, such as causal, and the method's own: `luna.options(name)`
    returns   a module, called with q, k, v of shape (B, n_heads, n, head_dim) and a mask (B, n)
    """
    cls = get(name)
    if not issubclass(cls, Attention):
        raise LunaError(
            f"'{name}' is a mixer of hidden states and has no q, k, v: build it with "
            f"luna.mixer('{name}', d_model=..., n_heads=..., max_len=...)"
        )
    sizes = {"n_heads": n_heads, "head_dim": head_dim, "max_len": max_len}
    slot, own = _sorted_settings(name, Slot, settings | sizes)
    attention = cls(Slot(**slot), **own)
    attention.traits()  # facts that contradict each other are refused here
    return attention


def mixer(
    name: str,
    *,
    d_model: int,
    n_heads: int,
    max_len: int,
    style: Style | None = None,
    **settings: Any,
) -> Mixer:
    """Build any method as a mixer of hidden states: an attention gets its projections.

    name      one of `luna.names()`
    d_model   the width of the hidden states
    n_heads   its heads
    max_len   tokens of the longest sequence
    style     what a network decides of the projections, such as rotary positions
    settings  those of `Place`, such as causal, those of what stands around, such as head_norm,
              and the method's own: `luna.options(name)`
    returns   a module, called with x of shape (B, n, d_model) and a mask (B, n). Rows of padding
              are not to be read: they are 0, or of an attention the bias of its last projection
    """
    cls, style = get(name), style or Style()
    around, settings = Around.split(settings)
    sizes = {"d_model": d_model, "n_heads": n_heads, "max_len": max_len}
    place, own = _sorted_settings(name, Place, settings | sizes)
    made: Mixer
    if issubclass(cls, Layered):
        if chosen := around.chosen():
            raise LunaError(
                f"attention '{name}' takes {min(chosen)} from its entries, such as "
                f"layers=[{{name: gla, {min(chosen)}: {chosen[min(chosen)]}}}]"
            )
        entry = cls.of_layer(place.get("layer", 0), **own)
        method = entry.pop("name")
        check_options(method, Around.split(entry)[1])  # none is a setting of the place
        return mixer(method, style=style, **place | entry)
    if issubclass(cls, Attention):
        letters = cls.letters(place.get("profile", "strict"), **own)
        attention = functools.partial(build, name, **own)
        made = QKV(cls, attention, Place(**place), around, style, letters=letters)
    else:
        _refuse_surroundings(name, around, style)
        made = typing.cast(type[Mixer], cls)(Place(**place), **own)
    made.traits()
    return made


def _sorted_settings(
    name: str, kind: type[Slot | Place], settings: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the place and the method's own options, each of the right type."""
    hints = typing.get_type_hints(kind)
    place = {key: value for key, value in settings.items() if key in hints}
    own = {key: value for key, value in settings.items() if key not in hints}
    for key, value in place.items():
        if not _fits(value, hints[key]):
            raise LunaError(f"{key} must be {_spell(hints[key])}, got {value!r}")
    check_options(name, own)
    return place, own


def _refuse_surroundings(name: str, around: Around, style: Style) -> None:
    """A mixer has no q, k, v, which ALiBi, rotary positions and what is around belong to."""
    given = [f"{key}={value!r}" for key, value in around.chosen().items()]
    given += ["alibi=True"] * style.alibi
    given += ["rotary positions"] * (style.positions is not None)
    if given:
        raise LunaError(
            f"{given[0]} is for attentions, and '{name}' is a mixer without q, k, v: leave it out"
        )


def mixes(name: str) -> bool:
    """Whether a method is a mixer of hidden states, and no attention on q, k, v."""
    return not issubclass(get(name), Attention)


def options(name: str) -> dict[str, inspect.Parameter]:
    """The method's own options: the keyword-only parameters of its constructor.

    name     one of `luna.names()`
    returns  for each option its default and its type
    """
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
        if key not in parameters:
            raise LunaError(f"attention '{name}' has no option '{key}'{nearest(key, parameters)}")
        if not _fits(value, hints.get(key, Any)):
            raise LunaError(f"{name}.{key} must be {_spell(hints[key])}, got {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise LunaError(f"{name}.{key} must be a finite number, got {value!r}")


def _files() -> dict[str, str]:
    """The modules of our own methods, by name."""
    from luna import attention, mixers

    return {
        m.name: f"{package.__name__}.{m.name}"
        for package in (attention, mixers)
        for m in pkgutil.iter_modules(package.__path__)
        if m.name[0] != "_"
    }


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
