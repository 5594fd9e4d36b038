"""Where Hydra looks for configs: in the user's folder (lra/base/groups.py), in `configs/`, and last
among the attentions and tasks that have no file.

Hydra's own --config-dir puts a folder behind ours, where its files can add to a group but not
replace a file of ours. An attention or a task without a file is a choice by its name alone;
`check_settings` adds the options of its class, which is imported only there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from lra import methods
from lra.base import groups, hydras
from lra.base.places import CONFIGS
from lra.data import registry


@contextmanager
def initialised() -> Iterator[None]:
    """Let hydra.compose read configs/ and the user's folder inside the block, within a run that
    Hydra has started too."""
    install()
    running, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        with hydra.initialize_config_dir(config_dir=str(CONFIGS), **hydras.of_base()):
            yield
    finally:
        GlobalHydra.instance().hydra = running


def install(root: Path = CONFIGS) -> None:
    """Tell Hydra what it cannot find below `root`, before it composes a config."""
    Plugins.instance().register(UserFolder)
    store, tasks = ConfigStore.instance(), registry.added_tasks() if root == CONFIGS else []
    for group, names in (("attention", method_names()), ("task", tasks)):
        store.repo.pop(group, None)  # of an earlier call; `task` is no group of a conversion
        for name in names:
            if groups.find(str(root.relative_to(CONFIGS) / group), name) is None:
                # Its options are set on the command line before its class says which it has.
                node = OmegaConf.create({"name": name}, flags={"struct": False})
                store.store(name, node, group=group)


class UserFolder(SearchPathPlugin):
    """Puts the user's folder, which mirrors configs/, before ours (so `lra convert` reads its
    `convert`)."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        main = Path(next((e.path for e in search_path.get_path() if e.provider == "main"), ""))
        for user in groups.folders()[:-1]:
            folder = user / os.path.relpath(main, CONFIGS)
            if main.is_relative_to(CONFIGS) and folder.is_dir():  # else another Hydra application
                search_path.prepend(groups.PROVIDER, str(folder), "main")


def method_names() -> list[str]:
    """List the names of all attentions, without importing any."""
    return sorted({*groups.names("attention"), *methods.names()})


@cache
def _load(file: Path) -> Any:
    return OmegaConf.load(file)


@cache
def read(group: str, name: str) -> dict[str, Any] | None:
    """Compose a choice of a group as it stands in a run's config, unresolved; None where it has no
    file. Not to be changed in place."""
    file, main = groups.find(group, name), groups.find(".", "train")
    if file is None:
        return None
    choice = OmegaConf.load(file)
    if main is None or "defaults" in choice:  # it is put together from several files
        with initialised():
            cfg: Any = hydra.compose("train", [f"{group}={name}"])
    else:  # as Hydra does it, but a hundred milliseconds faster
        cfg = OmegaConf.merge(_load(main), {group: choice})
    return cast(dict[str, Any], OmegaConf.to_container(cfg[group]))
