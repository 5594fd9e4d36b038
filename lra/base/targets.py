"""What settings name by `_target_`: a class or a function of torch, of ours or of the user's.

A module is looked for where Python finds others, and in the user's folder of configs: a file
`lion.py` beside `optimizer/lion.yaml` needs no package.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from lra.base import groups, hydras
from lra.base.errors import UserError, first_line, nearest

# A run has the versions of these packages in its record, as those of all else that it uses of them.
BY_VERSION = ("torch", "pytorch_lightning", "lightning", "lightning_fabric")
PLACE = "install its package, or put its file into the folder that --config-dir names"


def resolve(setting: str, target: Any) -> Callable[..., Any]:
    """Import what a setting names; UserError says which setting, and why it cannot be."""
    groups.folders()  # where a module may be
    parts = target.split(".") if isinstance(target, str) else []
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise UserError(f"{setting}._target_={target} is no place: write package.module.Name")
    module, names = _import(setting, target, parts)
    found: Any = module
    for name in names:
        if not hasattr(found, name):
            near = nearest(name, [word for word in vars(found) if not word.startswith("_")])
            raise UserError(
                f"{setting}._target_={target} cannot be imported: there is no '{name}' in "
                f"{getattr(found, '__name__', found)}{near}"
            )
        found = getattr(found, name)
    if not callable(found):
        raise UserError(f"{setting}._target_={target} is neither a class nor a function")
    return found


def _import(setting: str, target: str, parts: list[str]) -> tuple[Any, list[str]]:
    """Import the longest part that is a module: it, and the names that follow."""
    for end in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:end])
        try:
            return importlib.import_module(name), parts[end:]
        except Exception as error:  # whatever the user's module raises
            absent = error.name if isinstance(error, ModuleNotFoundError) else None
            if absent and f"{name}.".startswith(f"{absent}.") and end > 1:
                continue  # the last name of it is that of a class
            raise UserError(
                f"{setting}._target_={target} cannot be imported ({first_line(error)}): {PLACE}"
            ) from error
    raise AssertionError(parts)


def check_options(setting: str, made: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """UserError for an option that a class or a function does not take."""
    accepted = arguments_of(made)
    for name in options:
        if accepted is not None and name not in accepted:
            words = accepted - {"self", "params", "optimizer", "step"}
            raise UserError(
                f"{setting}.{name} is not an option of {made.__name__}{nearest(name, words)}"
            )


def built(setting: str, made: Callable[..., Any], target: str, *first: Any, **options: Any) -> Any:
    """Call a class or a function of the user's; what it raises becomes one sentence."""
    for inner in hydras.targets_in(options):
        resolve(setting, inner)
    try:
        if "_target_" in str(options):  # an option that is an object itself
            options = hydras.instantiate(options, _convert_="all")
        return made(*first, **options)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{setting}={target} cannot be built: {first_line(error)}") from error


def arguments_of(made: Callable[..., Any]) -> set[str] | None:
    """The names of the arguments of a class or a function; None if it takes any. What a class takes
    as **options is what the next one above it takes."""
    found: set[str] = set()
    functions: list[Any] = [made]
    if isinstance(made, type):
        functions = [vars(c)["__init__"] for c in made.__mro__ if "__init__" in vars(c)]
    for function in functions:
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):  # of a class that is written in C
            return None
        found |= {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return found
    return None


def module_of(made: Callable[..., Any]) -> str | None:
    """The module whose source decides what a target does; None for a package whose version the
    record has. What it imports is followed when it is hashed (code.py)."""
    module = getattr(made, "__module__", None) or type(made).__module__
    return None if module.partition(".")[0] in BY_VERSION else module
