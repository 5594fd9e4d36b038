"""The config of an attention without a file of its own: its class's options with their defaults.

Hydra sees the registry as one more place to look for configs, after all folders: a method of
another package, or one whose YAML is not written yet, is chosen with attention=<name> like ours.
Its class is imported when it is chosen, and not to list it.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import pkgutil
import sys
from importlib.util import find_spec
from typing import Any

from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lra.config import UserError

GROUP = "attention"
ENTRY_POINTS = "luna.attention"  # as luna/base.py has it, whose import would take torch


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
        return group == GROUP and name in names()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        inside = config_path.rstrip("/") == GROUP
        if results_filter is (ObjectType.GROUP if inside else ObjectType.CONFIG):
            return []
        return names() if inside else [GROUP]

    def load_config(self, config_path: str) -> ConfigResult:
        name = config_path.removesuffix(".yaml").rpartition("/")[2]
        config = {"name": name} | (options(name) if self.path == "options" else {})
        return ConfigResult(
            provider=self.provider,
            path=self.full_path(),
            config=OmegaConf.create(config),
            header={"package": None},
        )


def names() -> list[str]:
    """Every method, without importing one."""
    if "luna" in sys.modules:
        return sys.modules["luna"].names()
    spec = find_spec("luna")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folders = [f"{folder}/attention" for folder in spec.submodule_search_locations]
    files = {module.name for module in pkgutil.iter_modules(folders) if module.name[0] != "_"}
    plugins = {entry.name for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    return sorted(files | plugins)


def options(name: str) -> dict[str, Any]:
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
