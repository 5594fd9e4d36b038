"""The configuration of a host from its config.json, which may be somebody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from luna.base import LunaError
from luna.convert.host import transformers


def without_code(facts: Any) -> Any:
    """Leave out, at any depth, the keys by which transformers chooses code: `_attn_implementation`,
    for one, may name a kernel, which it would download and import."""
    if isinstance(facts, dict):
        return {
            key: without_code(value)
            for key, value in facts.items()
            if not key.startswith("_") and not key.endswith("_implementation")
        }
    return [without_code(part) for part in facts] if isinstance(facts, list) else facts


def eager_config(cls: Any, facts: dict[str, Any]) -> Any:
    """Make the configuration of a host's class, which runs its own softmax step by step."""
    config = cls.config_class.from_dict(without_code(facts), attn_implementation="eager")
    parts = [config, *(getattr(config, name, None) for name in config.sub_configs)]
    if {part._attn_implementation for part in parts if part is not None} != {"eager"}:
        raise LunaError(f"this version of transformers makes no {cls.__name__} that is eager")
    return config


def config_of(source: str | Path, *, offline: bool = False, **changes: Any) -> Any:
    """Read the configuration of a model in a folder or on the hub, `offline` what is kept of it
    here; ValueError if it needs code that is not in transformers."""
    package = transformers()
    facts, _ = package.PretrainedConfig.get_config_dict(source, local_files_only=offline)
    kind = facts.get("model_type")
    if not isinstance(kind, str) or kind not in package.CONFIG_MAPPING:
        raise ValueError(f"its config.json has the model_type {kind!r}, which transformers lacks")
    return package.CONFIG_MAPPING[kind].from_dict(without_code(facts), **changes)


def plain_file(path: Path) -> Path:
    """OSError for a pipe, which would be waited for, and for a device, which has no end."""
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is no plain file")
    return path
