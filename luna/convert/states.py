"""Files and folders that are complete or absent, and random generators as tensors."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

EXTRA, GENERATOR = "_extra_state", "generator_"


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `path`, then rename it: a crash leaves no half of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".tmp")
    write(partial)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def write_folder(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a folder, then put it in place of one that is there."""
    partial = path.with_suffix(".tmp")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    write(partial)
    shutil.rmtree(path, ignore_errors=True)
    partial.replace(path)


# ---------------------------------------------------------------------- random generators


def keep_generators_as_tensors(attention: nn.Module) -> None:
    """safetensors files hold tensors alone: store the state of every generator that was used as the
    byte tensor `<prefix>generator_<device>`."""
    attention.register_state_dict_post_hook(_save)
    attention.register_load_state_dict_pre_hook(_load)


def _save(module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any) -> None:
    generators = state_dict.pop(prefix + EXTRA, {})
    state_dict.update({f"{prefix}{GENERATOR}{kind}": s for kind, s in generators.items()})


def _load(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    start = prefix + GENERATOR
    states = {key: state_dict.pop(key) for key in list(state_dict) if key.startswith(start)}
    state_dict[prefix + EXTRA] = {key.removeprefix(start): state for key, state in states.items()}
