"""The tasks that a conversion can be trained and scored on: GLUE, folders of images, and a made one
to try things out."""

from __future__ import annotations

from luna.base import LunaError, nearest
from luna.convert.tasks.base import ConversionData, ConversionTask
from luna.convert.tasks.glue import TASKS as GLUE
from luna.convert.tasks.images import TASKS as IMAGES
from luna.convert.tasks.tiny import TASKS as TINY

__all__ = ["TASKS", "ConversionData", "ConversionTask", "get"]

TASKS: dict[str, ConversionTask] = {**GLUE, **IMAGES, **TINY}


def get(name: str) -> ConversionTask:
    """Return the task with this name on the command line."""
    if name not in TASKS:
        raise LunaError(f"unknown task '{name}'{nearest(name, TASKS)}")
    return TASKS[name]
