"""Where Hydra looks for configs: in the user's folder (lra/base/groups.py), in `configs/`, and last
among the attentions and tasks that have no file.

Hydra's own --config-dir puts a folder behind ours, where its files can add to a group but not
replace a file of ours. An attention or a task of another package, or one whose YAML is not written
yet, has the options of its class, which is imported where the command could choose it.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import pkgutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lra import data
from lra.base import groups
from lra.base.config import CONFIGS, UserError
from lra.data import registry
from lra.data.options import as_config

PROVIDER = "luna"  # of what is stored
ENTRY_POINTS = "luna.attention"  # as luna/registry.py has it, whose import would take torch


def install(words: Sequence[str], root: Path = CONFIGS) -> None:
    """Tell Hydra what it cannot find below `root`, before it composes a config with these words.

    What no word can choose is stored by its name alone and not imported; if a file chooses it after
    all, `check_settings` adds its options.
    """
    Plugins.instance().register(UserFolder)

    def may_be_chosen(name: str) -> bool:
        return any(name in word or "glob(" in word for word in words)

    store, repo = ConfigStore.instance().store, ConfigStore.instance().repo
    for group in ("attention", "task"):  # of an earlier call; `task` is no group of a conversion
        stored = repo.pop(group, {}).items()
        if others := {file: node for file, node in stored if node.provider != PROVIDER}:
            repo[group] = others
    group = str(root.relative_to(CONFIGS) / "attention")
    for name in method_names():
        if groups.find(group, name) is None:
            # A conversion has defaults of its own for most methods: their names suffice there.
            options = method_options(name) if root == CONFIGS and may_be_chosen(name) else {}
            store(name, {"name": name} | options, group="attention", provider=PROVIDER)
    for name in registry.added_tasks() if root == CONFIGS else ():
        if groups.find("task", name) is None:
            options = as_config(data.get(name)) if may_be_chosen(name) else {"name": name}
            store(name, options, group="task", provider=PROVIDER)


class UserFolder(SearchPathPlugin):
    """Puts the user's folder, which mirrors configs/, before ours (so `lra convert` reads its
    `convert`)."""

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
