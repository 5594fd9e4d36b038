"""What Hydra 1.4 wants otherwise than 1.3: no `version_base`, and a list of what settings may call.

Settings may call what they name themselves and we have seen there, nothing that comes in later, say
by an interpolation. Hydra itself refuses what it knows as dangerous, on the list or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lra.base import groups


def is_old() -> bool:
    """Say whether this is Hydra 1.3, which knows none of this."""
    import hydra

    return hydra.__version__.startswith("1.3.")


def of_base() -> dict[str, Any]:
    """The argument of hydra.initialize_config_dir that keeps 1.3 from the ways of 1.1."""
    return {"version_base": "1.3"} if is_old() else {}


def of_main() -> dict[str, Any]:
    """Arguments of hydra.main. Callbacks of a sweep are called before any setting of a run is read:
    ours, Hydra's own, and those of files beside the user's configs."""
    if is_old():
        return of_base()
    files = [file.stem for folder in groups.folders()[:-1] for file in folder.glob("*.py")]
    packages = "lra", "hydra_plugins", "hydra.experimental", *files
    return {"execution_whitelist": [f"{package}.*" for package in packages]}


def is_sweep(words: Sequence[str]) -> bool:
    """Say whether an experiment among these words asks for a sweep by `hydra.mode`, which Hydra 1.4
    takes from the command line and from the main config alone."""
    import yaml

    given = dict(word.partition("=")[::2] for word in words)
    file = groups.find("experiment", given.get("experiment", ""))
    if file is None or "hydra.mode" in given:
        return False
    content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    return (content.get("hydra") or {}).get("mode") == "MULTIRUN"


def targets_in(options: Any) -> Iterator[str]:
    """Yield every `_target_` in options, also that of an option that is an object itself."""
    if isinstance(options, Mapping):
        if "_target_" in options:
            yield options["_target_"]
        options = [*options.values()]
    if isinstance(options, list):
        for option in options:
            yield from targets_in(option)


def instantiate(options: Any, **more: Any) -> Any:
    """Hydra's own, of what these options name."""
    from hydra.utils import instantiate as made

    if not is_old():
        more["_execution_whitelist_"] = [*targets_in(options)]
    return made(options, **more)
