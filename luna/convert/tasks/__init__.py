"""The tasks that a conversion can be trained and scored on: GLUE and folders of images."""

from __future__ import annotations

from luna.base import LunaError, nearest
from luna.convert.tasks.base import ConversionData, ConversionTask
from luna.convert.tasks.glue import TASKS as GLUE
from luna.convert.tasks.images import TASKS as IMAGES

__all__ = ["TASKS", "ConversionData", "ConversionTask", "get"]

TASKS: dict[str, ConversionTask] = {**GLUE, **IMAGES}


def get(name: str) -> ConversionTask:
    """Return the task with this name on the command line."""
    if name not in TASKS:
        raise LunaError(f"unknown task '{name}'{nearest(name, TASKS)}")
    return TASKS[name]
