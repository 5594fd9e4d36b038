"""The tasks that a conversion can be trained and scored on: GLUE and folders of images."""

from __future__ import annotations

from luna.base import LunaError, nearest
from luna.convert.tasks.base import ConversionData, ConversionTask, Processor
from luna.convert.tasks.glue import TASKS as GLUE
from luna.convert.tasks.images import TASKS as IMAGES

__all__ = ["TASKS", "ConversionData", "ConversionTask", "Processor", "get"]

TASKS: dict[str, ConversionTask] = {**GLUE, **IMAGES}


def get(name: str) -> ConversionTask:
    """The task with this name on the command line."""
    if name == "wnli":
        raise LunaError("WNLI is left out, as in the published tables: its dev set is adversarial")
    if name not in TASKS:
        raise LunaError(f"unknown task '{name}'{nearest(name, TASKS)}")
    return TASKS[name]
