"""Folders of config files: `configs/`, and before it a folder of the user's, given with
--config-dir. A file in it adds a choice to a group, or replaces the one of that name.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lra.base import own
from lra.base.errors import UserError
from lra.base.places import CONFIGS

# Environment variable of the user's folder; processes of a sweep or a benchmark inherit it.
VARIABLE = "LRA_CONFIG_DIR"
PROVIDER = "user"  # name of that folder in Hydra's search path


def folders() -> list[Path]:
    added = os.environ.get(VARIABLE)
    if added and not Path(added).is_dir():
        raise UserError(f"--config-dir or {VARIABLE} names {added}, which is not a folder")
    folder = Path(added).absolute() if added else None
    own.know(folder)
    return [folder, CONFIGS] if folder else [CONFIGS]


def names(group: str) -> list[str]:
    return sorted({file.stem for folder in folders() for file in (folder / group).glob("*.yaml")})


def find(group: str, name: str) -> Path | None:
    return next(filter(Path.is_file, (f / group / f"{name}.yaml" for f in folders())), None)


def installed(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    """The entry points of installed packages and of the user's folder, by name."""
    folders()
    return _installed(group, *sys.path)


@functools.cache
def _installed(group: str, *path: str) -> dict[str, importlib.metadata.EntryPoint]:
    """Reading them takes 10 ms."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=group)}


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
    before = os.environ.get(VARIABLE, "")
    os.environ[VARIABLE] = str(Path(folder).absolute()) if folder else before
    try:
        folders()  # refuses one that does not exist
        yield
    finally:
        os.environ[VARIABLE] = before
