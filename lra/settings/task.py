"""What a composed config says of a task's data, for commands that need no whole run."""

from __future__ import annotations

from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from lra import data
from lra.base.config import UserError
from lra.settings.compose import explain, initialised, row_of_own_task


def task_settings(name: str, protocol: str) -> tuple[dict[str, Any], int]:
    """Compose a task's options under a protocol, and read its length there: the task's own where
    the protocol has no row for it."""
    import hydra
    from hydra.errors import HydraException

    task, words = data.get(name), [f"task={name}", f"protocol={protocol}"]
    try:
        with initialised(words):
            cfg = hydra.compose("train", words)
        row_of_own_task(cfg)
        options = OmegaConf.to_container(cfg.task, resolve=True, throw_on_missing=True)
        rows = cfg.protocol.get("tasks") or {}
        length = cfg.protocol.data.max_length if name in rows else task.max_length
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise UserError(explain(error)) from error
    return cast(dict[str, Any], options), length or task.max_length
