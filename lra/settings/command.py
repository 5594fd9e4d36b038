"""The command of a run as its record has it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from lra.base import groups


def typed(command: str, settings: Sequence[str]) -> str:
    """Write the command with its settings, for the record; of a sweep, that of the one job.
    Words for loggers stay out: they decide nothing, and an address may hold a password."""
    folder = os.environ.get(groups.VARIABLE)
    words = ["lra", *(["--config-dir", folder] if folder else []), command]
    return shlex.join([*words, *(s for s in settings if not s.lstrip("+~").startswith("logger"))])
