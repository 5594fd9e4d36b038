"""States that files can hold: random generators as plain tensors, and a stage's state to resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from luna.base import LunaError

EXTRA, GENERATOR = "_extra_state", "generator_"


def keep_generators_as_tensors(attention: nn.Module) -> None:
    """`<prefix>generator_cpu` (a byte tensor) for a generator that was used, nothing otherwise."""
    attention.register_state_dict_post_hook(_save)
    attention.register_load_state_dict_pre_hook(_load)


def _save(module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any) -> None:
    generators = state_dict.pop(prefix + EXTRA, {})
    state_dict.update({f"{prefix}{GENERATOR}{kind}": s for kind, s in generators.items()})


def _load(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    start = prefix + GENERATOR
    kept = {key: state_dict.pop(key) for key in list(state_dict) if key.startswith(start)}
    state_dict[prefix + EXTRA] = {key.removeprefix(start): state for key, state in kept.items()}


# ---------------------------------------------------------------------- of an interrupted stage


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_suffix(".tmp")
    torch.save(state, whole)
    whole.replace(path)


def read_state(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The state in `path`, if it belongs to a run with these settings."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # zip, pickle and runtime errors, whatever a torn file causes
        raise LunaError(f"{path} cannot be read ({error}): delete it to start over") from error
    if state["settings"] != settings:
        raise LunaError(
            f"{path} belongs to a run with other settings ({state['settings']}): use another folder"
        )
    return state
