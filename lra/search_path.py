"""Tell Hydra where to look for configs: in the user's folder (lra/groups.py), in ours, and last in
the classes of the methods (lra/method_configs.py).

Hydra's own --config-dir puts a folder behind ours, where its files can add to a group but not
replace a file of ours.
"""

from __future__ import annotations

from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from lra import groups
from lra.config import CONFIGS
from lra.method_configs import MethodConfigs


class Places(SearchPathPlugin):
    """The user's folder mirrors configs/: what `lra convert` reads is in its `convert`."""

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
        # Most methods convert with defaults of the conversion's own: their names suffice there.
        what = "options" if below == Path() else "names"
        search_path.append("methods", f"{MethodConfigs.scheme()}://{what}")


def install() -> None:
    """To be called before Hydra composes anything."""
    Plugins.instance().register(Places)
    Plugins.instance().register(MethodConfigs)
