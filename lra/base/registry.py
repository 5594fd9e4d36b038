"""Classes by their names: those of this package, those that were registered in this process, and
those of installed packages, which declare them as entry points.

A module is imported when a name of it is used.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Generic, TypeVar, cast

from lra.base import groups
from lra.base.errors import UserError, first_line, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    def __init__(
        self,
        kind: str,
        *,
        builtin: Mapping[str, str],  # name: module:Class
        entry_points: str,
        register: Callable[[Any], Any],  # which checks a class and calls `add`
        unknown: str,  # what is said before a name that there is not
    ):
        self.kind, self.builtin, self.entry_points = kind, builtin, entry_points
        self.register, self.unknown = register, unknown
        self.added: dict[str, type[T]] = {}

    def add(self, name: str, cls: type[T]) -> None:
        self.added[name] = cls

    def others(self) -> list[str]:
        """The names that are not of this package."""
        return sorted({*self.added, *groups.installed(self.entry_points)})

    def names(self) -> list[str]:
        return [*self.builtin, *self.others()]

    def get(self, name: str) -> type[T]:
        """Give the class of that name, which is imported now."""
        if name in self.builtin:
            return cast(type[T], pkgutil.resolve_name(self.builtin[name]))
        entry = groups.installed(self.entry_points).get(name)
        if entry is not None and name not in self.added:
            where: str | None = entry.value
            try:
                loaded = entry.load()
                if isinstance(loaded, ModuleType):  # a file, which has registered its class
                    where = loaded.__file__
                else:
                    self.register(loaded)
            except Exception as error:  # whatever a broken file raises
                raise UserError(
                    f"{self.kind} '{name}' of {entry.value} cannot be imported: {first_line(error)}"
                ) from error
            if name not in self.added:
                raise UserError(f"{where} registers no {self.kind} '{name}'")
        if name not in self.added:
            raise UserError(f"{self.unknown} '{name}'{nearest(name, self.names())}")
        return self.added[name]
