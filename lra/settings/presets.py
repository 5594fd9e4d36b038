"""What an attention's file says beside its options, and the options that its presets hold."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lra.base.errors import UserError, nearest
from lra.base.versions import STACK
from lra.settings.search_path import read
from luna.around import Around

# Keys that are not options of the method (configs/train.yaml has their meaning).
NO_OPTIONS = ("knobs", "exempt", "preset", "presets", "rows")
# What stands around any attention, where a run does not say otherwise.
AROUND: dict[str, Any] = asdict(Around())


def fill_in_preset(attention: dict[str, Any], task: str) -> dict[str, Any]:
    """Give the options that an attention's file leaves open (`???`), and nobody has set, the values
    of its preset, or else of `published`. A mapping holds one value per task. Takes out what is no
    option, and returns it."""
    presets, preset = attention.get("presets") or {}, attention.get("preset")
    if presets and preset not in presets:  # the code that a protocol reproduces never ran it
        raise UserError(
            f"attention '{attention['name']}' has no preset '{preset}'"
            f"{nearest(str(preset), presets)}; where a protocol asked for it, add "
            "attention.preset=published"
        )
    row = attention.get("rows", {}).get(task, task)
    for option, value in {**presets.get("published", {}), **presets.get(preset, {})}.items():
        if attention.get(option) == "???":
            by_task = value if isinstance(value, dict) else {"others": value}
            attention[option] = by_task[row if row in by_task else "others"]
    return {key: attention.pop(key, None) for key in NO_OPTIONS}


def fill_in_layers(attention: dict[str, Any], task: str, preset: str) -> None:
    """Give the methods of a stack's layers the options that `attention=<method>` sets under this
    preset, where an entry does not say otherwise."""
    entries = attention.get("layers")
    if attention["name"] != STACK or not isinstance(entries, list):
        return  # luna.mixer refuses what is no list of methods
    attention["layers"] = [_filled_in(entry, task, preset) for entry in entries]


def _filled_in(entry: Any, task: str, preset: str) -> Any:
    given = {"name": entry} if isinstance(entry, str) else entry
    if not (isinstance(given, dict) and isinstance(given.get("name"), str)):
        return entry
    options = usual_options(given["name"], task, preset) | given
    return {k: v for k, v in options.items() if k not in AROUND or v != AROUND[k]}


def take_cost_facts(attention: dict[str, Any], task: str) -> dict[str, Any]:
    """Leave an attention the options that are built and identify the run, and return what its file
    says about its cost, for `compute`."""
    about = fill_in_preset(attention, task)
    fill_in_layers(attention, task, about["preset"] or "matched")
    exempt = about["exempt"]
    exempt = exempt.get(task) if isinstance(exempt, dict) else exempt
    return {"exempt": exempt, "preset": about["preset"], "knobs": about["knobs"] or {}}


def reference_of(budget: str, task: str) -> dict[str, Any]:
    """Read the attention whose cost is the budget: `name`, at its published options, or
    `name:preset`."""
    name, _, preset = budget.partition(":")
    if not preset:
        return {"name": name}
    presets = (read("attention", name) or {}).get("presets", {})
    if preset not in presets:
        raise UserError(
            f"compute.reference={budget}: attention '{name}' has no preset '{preset}'"
            f"{nearest(preset, presets)}"
        )
    return usual_options(name, task, preset)


def usual_options(attention: str, task: str, preset: str) -> dict[str, Any]:
    """Read the options that `attention=<attention>` sets on a task under a preset (`matched` where
    its file lacks the preset); empty for an attention without a file."""
    file = read("attention", attention)
    if file is None:
        return {}
    options = file | {"preset": preset if preset in file.get("presets", {}) else "matched"}
    fill_in_preset(options, task)
    fill_in_layers(options, task, preset)
    return options
