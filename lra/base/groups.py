"""The one reader of the YAML files in `configs/`, for code that needs less than a whole run.

Whole runs are composed by Hydra (lra/settings/compose.py). A folder of the user's, given with
--config-dir, is searched before ours: a file in it adds a choice to a group, or replaces the one of
that name.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from lra.base.config import CONFIGS, UserError, nearest, readable

# Keys of an attention's file that are not options of the method (configs/train.yaml has their
# meaning).
NO_OPTIONS = ("knobs", "exempt", "preset", "presets", "later")

# Environment variable of the user's folder; processes of a sweep or a benchmark inherit it.
VARIABLE = "LRA_CONFIG_DIR"
HINT = "correct that file"
PROVIDER = "user"  # name of that folder in Hydra's search path


def folders() -> list[Path]:
    added = os.environ.get(VARIABLE)
    if not added:
        return [CONFIGS]
    if not Path(added).is_dir():
        raise UserError(f"--config-dir or {VARIABLE} names {added}, which is not a folder")
    return [Path(added).absolute(), CONFIGS]


def names(group: str) -> list[str]:
    return sorted({file.stem for folder in folders() for file in (folder / group).glob("*.yaml")})


def find(group: str, name: str) -> Path | None:
    files = (folder / group / f"{name}.yaml" for folder in folders())
    return next((file for file in files if file.is_file()), None)


def read(group: str, name: str) -> DictConfig:
    """Merge the file of a choice over the files of the same group in its defaults list, without
    resolving it. Overrides of other groups in that list are left out."""
    file = find(group, name)
    if file is None:
        raise UserError(f"unknown {group} '{name}'{nearest(name, names(group))}")
    with readable(file, HINT):
        config = _load(file).copy()
        listed = (entry for entry in config.pop("defaults", []) if isinstance(entry, str))
        parents = [parent for parent in listed if parent != "_self_"]
        merged = OmegaConf.merge(*(read(group, parent) for parent in parents), config)
    return cast(DictConfig, merged)


@cache
def _load(file: Path) -> DictConfig:
    return cast(DictConfig, OmegaConf.load(file))


# ---------------------------------------------------------------------- an attention's options


def fill_in_preset(attention: DictConfig, task: str) -> None:
    """Give the options that an attention's file leaves open (`???`), and nobody has set, the values
    of its preset, or else of `published`. A mapping holds one value per task."""
    presets, preset = attention.get("presets"), attention.get("preset")
    if presets is None:
        return
    if preset not in presets:  # the code that a protocol reproduces never ran the attention
        raise UserError(
            f"attention '{attention.name}' has no preset '{preset}'"
            f"{nearest(str(preset), map(str, presets))}"
        )
    for option, value in {**presets.get("published", {}), **presets[preset]}.items():
        if isinstance(value, DictConfig):
            value = value[task if task in value else "others"]
        if OmegaConf.is_missing(attention, option):
            attention[option] = value


def usual_options(attention: str, task: str, preset: str) -> dict[str, Any]:
    """Read the options that `attention=<attention>` sets on a task under a preset (`matched` where
    its file lacks the preset); empty for an attention without a file."""
    if (file := find("attention", attention)) is None:
        return {}
    with readable(file, HINT):
        return _usual_options(attention, task, preset, tuple(folders()))


@cache
def _usual_options(name: str, task: str, preset: str, _: tuple[Path, ...]) -> dict[str, Any]:
    slot = _load(CONFIGS / "train.yaml").attention
    attention = cast(DictConfig, OmegaConf.merge(slot, read("attention", name)))
    attention.preset = preset if preset in attention.presets else "matched"
    fill_in_preset(attention, task)
    options = cast(dict[str, Any], OmegaConf.to_container(attention, resolve=True))
    return {key: value for key, value in options.items() if key not in NO_OPTIONS}


def later_options(attention: str) -> dict[str, Any]:
    """Read the options that are younger than the method's first records: at these values a run
    leaves them out of its settings."""
    return _later_options(attention, tuple(folders()))


@cache
def _later_options(attention: str, _: tuple[Path, ...]) -> dict[str, Any]:
    if find("attention", attention) is None:
        return {}
    later = read("attention", attention).get("later") or {}
    return cast(dict[str, Any], OmegaConf.to_container(OmegaConf.create(later)))


# ---------------------------------------------------------------------- the user's folder


def take_folder(words: Sequence[str]) -> tuple[list[str], str | None]:
    """Split `--config-dir DIR` off the words of a command line: the other words, and DIR."""
    parser = argparse.ArgumentParser(prog="lra", add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir")
    usual = ["--config-dir" if word == "-cd" else word for word in words]  # Hydra's short form
    arguments, others = parser.parse_known_args(usual)
    return others, arguments.config_dir


@contextmanager
def searching(folder: str | Path | None) -> Iterator[None]:
    """Search this folder too inside the block; None changes nothing."""
    if folder is None:
        yield
        return
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(Path(folder).absolute())
    try:
        folders()  # refuses one that does not exist
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
