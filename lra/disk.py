"""Atomic writing of files, and readable errors of disks."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lra.config import UserError


@contextlib.contextmanager
def disk_errors(place: Path, cure: str = "choose another folder") -> Iterator[None]:
    """Turn errors of full disks and closed folders into a UserError that names the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"no space left on the disk of {place}: free some, or {cure}"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise UserError(
                f"cannot write to {place} ({os.strerror(error.errno)}): change its permissions, "
                f"or {cure}"
            ) from error
        raise


def require_space(folder: Path, needed: int, cure: str = "choose another folder") -> None:
    """Refuse at once what cannot fit on the folder's disk."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"no space left on the disk of {folder}: {needed / 1e6:,.0f} MB are needed, "
            f"{free / 1e6:,.0f} MB are free; free some, or {cure}"
        )


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write all or nothing, even if the process dies: a temporary file, fsync, rename."""
    temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
    try:
        with temporary.open("wb") as f:
            f.write(content)
            f.flush()
            os.fsync(f.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """None where there is no such file; UserError where it is not a JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); remove it and run again") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged (no JSON object); remove it and run again")
    return value
