"""Atomic writing of files, and readable errors of disks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from lra.base.errors import UserError, readable

FULL = (errno.ENOSPC, errno.EDQUOT)
BROKEN = (errno.EIO, errno.ESTALE)  # the second is a network's disk that went away
CLOSED = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.EFBIG,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
)


def sentence(error: OSError, place: Path | str, hint: str) -> str | None:
    """Explain the error of a full, broken or closed disk; None for other errors."""
    if error.errno in FULL:
        return f"no space left on the disk of {place}: free some, or {hint}"
    missing = error.errno == errno.ENOENT and not Path(place).parent.exists()  # as below /proc
    if missing or error.errno in (*BROKEN, *CLOSED):
        return f"cannot write to {place} ({os.strerror(error.errno or 0)}): {hint}"
    return None


@contextlib.contextmanager
def disk_errors(place: Path, hint: str = "choose another folder") -> Iterator[None]:
    """Turn errors of full, broken and closed disks into a UserError that names the remedy."""
    try:
        yield
    except OSError as error:
        if (message := sentence(error, place, hint)) is not None:
            raise UserError(message) from error
        raise


def take_lock(handle: IO[Any], place: Path, *, wait: bool = False) -> bool:
    """Take the kernel's lock on an open file; False if another process holds it. The kernel
    releases it when the process ends, even if it is killed."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise UserError(
            f"the file system of {place} has no locks ({os.strerror(error.errno or 0)}), so two "
            "processes could write the same files: choose a folder on another one"
        ) from error
    return True


def require_space(folder: Path, needed: int, hint: str = "choose another folder") -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"no space left on the disk of {folder}: {needed / 1e6:,.0f} MB are needed, "
            f"{free / 1e6:,.0f} MB are free; free some, or {hint}"
        )


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write all or nothing, even if the process dies: a temporary file, fsync, rename. What a
    process of this machine left there when it was killed is removed."""
    start = f"{path.name}.tmp-{socket.gethostname()}-"
    temporary = path.with_name(f"{start}{os.getpid()}")
    for other in path.parent.iterdir():
        if other.name.startswith(start) and not is_running(other.name.removeprefix(start)):
            other.unlink(missing_ok=True)
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


def is_running(process: str) -> bool:
    try:
        with contextlib.suppress(PermissionError):  # somebody else's
            os.kill(int(process), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    return True


def write_json(path: Path, value: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def plain_file(path: Path) -> Path:
    """UserError for a pipe, which would be waited for, and for a device, which has no end."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a file")
    return path


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None where there is no such file."""
    if not path.exists():
        return None
    with readable(path, "remove it and run again"):
        value = json.loads(plain_file(path).read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError("no JSON object")
    return value
