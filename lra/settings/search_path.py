"""Where Hydra looks for configs: in the user's folder (lra/base/groups.py), in `configs/`, and last
in the registries of attentions and of tasks.

Hydra's own --config-dir puts a folder behind ours, where its files can add to a group but not
replace a file of ours. The registries serve an attention or a task of another package, or one
whose YAML is not written yet: its options are those of its class, imported when it is chosen.
"""

from __future__ import annotations

import builtins
import importlib.metadata
import inspect
import pkgutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lra import data
from lra.base import groups
from lra.base.config import CONFIGS, UserError
from lra.data import registry
from lra.data.options import as_config

ENTRY_POINTS = "luna.attention"  # as luna/registry.py has it, whose import would take torch


def install() -> None:
    """Register both plugins; to be called before Hydra composes anything."""
    Plugins.instance().register(Places)
    Plugins.instance().register(Registries)


class Places(SearchPathPlugin):
    """Adds the user's folder, which mirrors configs/ (so `lra convert` reads its `convert`), and
    the registries."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        main = next((e.path for e in search_path.get_path() if e.provider == "main"), "")
        if not Path(main).is_relative_to(CONFIGS):  # another application of Hydra
            return
        below = Path(main).relative_to(CONFIGS)
        for folder in groups.folders()[:-1]:
            if (folder / below).is_dir():
                search_path.prepend(
                    groups.PROVIDER, f"file://{folder / below}", SearchPathQuery(provider="main")
                )
        # A conversion has defaults of its own for most methods: their names suffice there.
        what = "options" if below == Path() else "names"
        search_path.append("methods", f"{Registries.scheme()}://{what}")


class Registries(ConfigSource):
    """`luna://options` holds attention/<name> with every option and task/<name>; `luna://names`
    holds attention/<name> without options."""

    @staticmethod
    def scheme() -> str:
        return "luna"

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path.rstrip("/") in ("", *self._groups())

    def is_config(self, config_path: str) -> bool:
        group, _, name = config_path.removesuffix(".yaml").rpartition("/")
        return group in self._groups() and name in self._groups()[group]()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        group, groups = config_path.rstrip("/"), self._groups()
        if results_filter is (ObjectType.GROUP if group in groups else ObjectType.CONFIG):
            return []
        return groups[group]() if group in groups else [*groups]

    def load_config(self, config_path: str) -> ConfigResult:
        group, _, name = config_path.removesuffix(".yaml").rpartition("/")
        config: dict[str, Any] = {"name": name}
        if group == "task":
            config = as_config(data.get(name))
        elif self.path == "options":
            config |= method_options(name)
        return ConfigResult(
            provider=self.provider,
            path=self.full_path(),
            config=OmegaConf.create(config),
            header={"package": None},
        )

    def _groups(self) -> dict[str, Callable[[], builtins.list[str]]]:
        tasks = {"task": registry.added_tasks} if self.path == "options" else {}
        return {"attention": method_names, **tasks}


def method_names() -> list[str]:
    """List the names of all attentions, without importing any."""
    if "luna" in sys.modules:
        return sys.modules["luna"].names()
    spec = find_spec("luna")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folders = [f"{folder}/attention" for folder in spec.submodule_search_locations]
    files = {module.name for module in pkgutil.iter_modules(folders) if module.name[0] != "_"}
    plugins = {entry.name for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    return sorted(files | plugins)


def method_options(name: str) -> dict[str, Any]:
    """List a method's options with their defaults; those without one must be set."""
    import luna

    options: dict[str, Any] = {}
    for key, option in luna.options(name).items():
        options[key] = "???" if option.default is inspect.Parameter.empty else option.default
        try:
            OmegaConf.create(options)
        except OmegaConfBaseException as error:
            raise UserError(
                f"attention '{name}' has an option {key}={options[key]!r}, which no config can "
                "hold: give it a number, a text, a list or None as its default"
            ) from error
    return options
