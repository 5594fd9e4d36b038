"""What an attention's file says beside its options, and the options that its presets hold."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from lra.base import groups
from lra.base.config import UserError, nearest
from lra.settings.search_path import read

# Keys that are not options of the method (configs/train.yaml has their meaning).
NO_OPTIONS = ("knobs", "exempt", "preset", "presets", "later")
LIKE_RECALL = ("single", "fuzzy", "memorise")  # probes on which attentions have recall's sizes


def fill_in_preset(attention: dict[str, Any], task: str) -> None:
    """Give the options that an attention's file leaves open (`???`), and nobody has set, the values
    of its preset, or else of `published`. A mapping holds one value per task."""
    presets, preset = attention.get("presets"), attention.get("preset")
    if presets is None:
        return
    if preset not in presets:  # the code that a protocol reproduces never ran the attention
        raise UserError(
            f"attention '{attention['name']}' has no preset '{preset}'"
            f"{nearest(str(preset), presets)}"
        )
    for option, value in {**presets.get("published", {}), **presets[preset]}.items():
        if attention.get(option) == "???":
            by_task = value if isinstance(value, dict) else {"others": value}
            row = "recall" if task in LIKE_RECALL else task
            attention[option] = by_task[row if row in by_task else "others"]


def usual_options(attention: str, task: str, preset: str) -> dict[str, Any]:
    """Read the options that `attention=<attention>` sets on a task under a preset (`matched` where
    its file lacks the preset); empty for an attention without a file."""
    file = _read_file(attention, tuple(groups.folders()))
    if file is None:
        return {}
    options = file | {"preset": preset if preset in file["presets"] else "matched"}
    fill_in_preset(options, task)
    return {key: value for key, value in options.items() if key not in NO_OPTIONS}


def later_options(attention: str) -> dict[str, Any]:
    """Read the options that are younger than the method's first records: at these values a run
    leaves them out of its settings."""
    file = _read_file(attention, tuple(groups.folders()))
    return file["later"] if file else {}


@cache
def _read_file(attention: str, _: tuple[Path, ...]) -> dict[str, Any] | None:
    if groups.find("attention", attention) is None:
        return None
    return cast(dict[str, Any], OmegaConf.to_container(read("attention", attention)))
