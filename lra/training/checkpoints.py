"""Reading a checkpoint, without Lightning, whose import takes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lra.base.config import UserError


def load_checkpoint(path: Path, identity: str | None = None) -> dict[str, Any]:
    """Load a checkpoint; UserError for a damaged file and for one of another run."""
    try:
        checkpoint = dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # without torch's text, which advises to trust such a file
        raise UserError(
            f"{path} is damaged, or holds more than tensors and plain values, which is not loaded; "
            "remove it to start from the beginning"
        ) from error
    if identity is not None and checkpoint.get("identity") != identity:
        raise UserError(
            f"{path} belongs to run {checkpoint.get('identity')}, not to {identity}; remove it"
        )
    return checkpoint
