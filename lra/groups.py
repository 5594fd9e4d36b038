"""The files of `configs/`: which there are, and what one of them says.

Hydra composes whole runs from them (lra/compose.py); whoever needs less than a run reads it here. A
folder of the user's, given with --config-dir, is searched before ours: a file in it adds a choice
to a group, or replaces the one of that name.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import cast

from omegaconf import DictConfig, OmegaConf

from lra.config import CONFIGS, UserError, nearest

# Holds the user's folder. The processes of a sweep or of a benchmark inherit it.
VARIABLE = "LRA_CONFIG_DIR"
PROVIDER = "user"  # what Hydra calls the folder in its search path


def folders() -> list[Path]:
    """Where files are looked for, in this order."""
    added = os.environ.get(VARIABLE)
    if not added:
        return [CONFIGS]
    if not Path(added).is_dir():
        raise UserError(f"--config-dir or {VARIABLE} names {added}, which is not a folder")
    return [Path(added).absolute(), CONFIGS]


def names(group: str) -> list[str]:
    """The choices of a group, such as `attention`."""
    return sorted({file.stem for folder in folders() for file in (folder / group).glob("*.yaml")})


def find(group: str, name: str) -> Path | None:
    files = (folder / group / f"{name}.yaml" for folder in folders())
    return next((file for file in files if file.is_file()), None)


def read(group: str, name: str) -> DictConfig:
    """The file of a choice, upon those of the same group in its defaults list; not resolved."""
    file = find(group, name)
    if file is None:
        raise UserError(f"unknown {group} '{name}'{nearest(name, names(group))}")
    own = _load(file).copy()
    parents = [parent for parent in own.pop("defaults", []) if parent != "_self_"]
    merged = OmegaConf.merge(*(read(group, parent) for parent in parents), own)
    return cast(DictConfig, merged)


@cache
def _load(file: Path) -> DictConfig:
    return cast(DictConfig, OmegaConf.load(file))


# ---------------------------------------------------------------------- the user's folder


def take_folder(words: Sequence[str]) -> tuple[list[str], str | None]:
    """The words of a command line without `--config-dir DIR`, and DIR."""
    parser = argparse.ArgumentParser(prog="lra", add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir")
    usual = ["--config-dir" if word == "-cd" else word for word in words]  # Hydra's short form
    known, others = parser.parse_known_args(usual)
    return others, known.config_dir


@contextmanager
def searching(folder: str | Path | None) -> Iterator[None]:
    """Search this folder, too, inside the block; None changes nothing."""
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
