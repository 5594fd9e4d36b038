"""Where Hydra looks for configs: in the user's folder (lra/groups.py), in `configs/`, and last in
the registry of attentions.

Hydra's own --config-dir puts a folder behind ours, where its files can add to a group but not
replace a file of ours. The registry serves an attention of another package, or one whose YAML is
not written yet: its options are those of its class, which is imported when it is chosen.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import pkgutil
import sys
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

from lra import groups
from lra.config import CONFIGS, UserError

GROUP = "attention"
ENTRY_POINTS = "luna.attention"  # as luna/base.py has it, whose import would take torch


def install() -> None:
    """Register both plugins; to be called before Hydra composes anything."""
    Plugins.instance().register(Places)
    Plugins.instance().register(MethodConfigs)


class Places(SearchPathPlugin):
    """Adds the user's folder, which mirrors configs/ (so `lra convert` reads its `convert`), and
    the registry."""

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
        search_path.append("methods", f"{MethodConfigs.scheme()}://{what}")


class MethodConfigs(ConfigSource):
    """`luna://options` holds attention/<name> with every option, `luna://names` without."""

    @staticmethod
    def scheme() -> str:
        return "luna"

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path.rstrip("/") in ("", GROUP)

    def is_config(self, config_path: str) -> bool:
        group, _, name = config_path.removesuffix(".yaml").rpartition("/")
        return group == GROUP and name in method_names()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        inside = config_path.rstrip("/") == GROUP
        if results_filter is (ObjectType.GROUP if inside else ObjectType.CONFIG):
            return []
        return method_names() if inside else [GROUP]

    def load_config(self, config_path: str) -> ConfigResult:
        name = config_path.removesuffix(".yaml").rpartition("/")[2]
        config = {"name": name} | (method_options(name) if self.path == "options" else {})
        return ConfigResult(
            provider=self.provider,
            path=self.full_path(),
            config=OmegaConf.create(config),
            header={"package": None},
        )


def method_names() -> list[str]:
    """The names of all attentions, without importing any."""
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
    """The options of a method's class with their defaults; those without one must be set."""
    import luna

    found: dict[str, Any] = {}
    for key, option in luna.options(name).items():
        found[key] = "???" if option.default is inspect.Parameter.empty else option.default
        try:
            OmegaConf.create(found)
        except OmegaConfBaseException as error:
            raise UserError(
                f"attention '{name}' has an option {key}={found[key]!r}, which no config can hold: "
                "give it a number, a text, a list or None as its default"
            ) from error
    return found
