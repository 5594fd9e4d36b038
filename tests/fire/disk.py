"""A disk that fails at one chosen call.

Everything that Python does to files below one folder is counted: opening for writing, each write,
fsync, rename, mkdir, unlink. One of these calls fails in one of the ways a disk can fail. The calls
are Python's own and not a module of ours, so no write can pass the shim by.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

# How a call can fail. `full`: no space from here on; `EIO`: this call alone; `short`: half of the
# bytes are written, which the caller has to notice; `torn`: half of them and then no space;
# `kill` and `torn kill`: the process dies; `slow`: nothing but a delay.
KINDS = {
    "open": ("full", "EIO", "kill"),
    "write": ("full", "EIO", "short", "torn", "torn kill", "kill"),
    "fsync": ("full", "EIO", "slow", "kill"),
    "rename": ("EIO", "full", "kill"),
    "mkdir": ("full", "EIO", "kill"),
    "unlink": ("EIO", "kill"),
}
NEEDS_SPACE = ("open", "write", "fsync", "mkdir")


class Fault(NamedTuple):
    """The call (from 0) that fails, and how."""

    at: int
    kind: str


class FailingDisk:
    """Everything below `root` is on it while :meth:`mounted` lasts."""

    def __init__(self, root: Path, fault: Fault | None = None):
        self.root, self.fault = f"{os.path.abspath(root)}{os.sep}", fault  # noqa: PTH100
        self.events: list[str] = []
        self.full = False

    @contextlib.contextmanager
    def mounted(self) -> Iterator[None]:
        real = {name: getattr(os, name) for name in ("fsync", "replace", "rename", "mkdir",
                                                     "unlink", "remove", "open")}  # fmt: skip
        opened = io.open
        guarded = {
            "fsync": self._guard("fsync", real["fsync"]),
            "mkdir": self._guard("mkdir", real["mkdir"]),
            **{name: self._guard("rename", real[name]) for name in ("replace", "rename")},
            **{name: self._guard("unlink", real[name]) for name in ("unlink", "remove")},
            "open": self._os_open(real["open"]),
        }
        try:
            for name, call in guarded.items():
                setattr(os, name, call)
            io.open = builtins.open = self._open(opened)  # type: ignore[assignment]
            yield
        finally:
            for name, call in real.items():
                setattr(os, name, call)
            io.open = builtins.open = opened

    def event(
        self, what: str, path: str, write_half: Callable[[], int] | None = None
    ) -> int | None:
        """Count a call and let it fail where it is to; a number is the bytes of a short write."""
        number = len(self.events)
        self.events.append(what)
        kind = self.fault.kind if self.fault and number == self.fault.at else None
        if kind in ("short", "torn", "torn kill") and write_half is not None:
            written = write_half()
            if kind == "short":
                return written
        if kind in ("kill", "torn kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "slow":
            time.sleep(0.02)
        place = [] if what in ("write", "fsync") else [path]  # the kernel has but a number there
        if kind == "EIO":
            raise OSError(errno.EIO, os.strerror(errno.EIO), *place)
        self.full |= kind in ("full", "torn")
        if kind == "full" or (self.full and what in NEEDS_SPACE):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *place)
        return None

    def holds(self, path: Any) -> str | None:
        """The absolute path, if it is on this disk."""
        if isinstance(path, int):
            path = Path(f"/proc/self/fd/{path}").readlink()
        found = os.path.abspath(os.fsdecode(path))  # noqa: PTH100
        return found if f"{found}{os.sep}".startswith(self.root) else None

    def _guard(self, what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(path: Any, *rest: Any, **options: Any) -> Any:
            there = None if options.get("dir_fd") is not None else self.holds(path)
            if there is not None:
                self.event(what, there)
            return call(path, *rest, **options)

        return guarded

    def _os_open(self, call: Callable[..., int]) -> Callable[..., int]:
        def guarded(path: Any, flags: int, *rest: Any, **options: Any) -> int:
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            here = options.get("dir_fd") is None
            if writes and here and (there := self.holds(path)) is not None:
                self.event("open", there)
            return call(path, flags, *rest, **options)

        return guarded

    def _open(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(
            file: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None,
            errors: str | None = None, newline: str | None = None, **rest: Any,
        ) -> Any:  # fmt: skip
            there = None if isinstance(file, int) else self.holds(file)
            if there is None or not set(mode) & set("wax+"):
                return call(file, mode, buffering, encoding, errors, newline, **rest)
            self.event("open", there)
            raw = _File(file, mode.replace("t", ""), self)
            if buffering == 0:
                return raw
            binary = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            if "b" in mode:
                return binary
            text = io.TextIOWrapper(binary, encoding, errors, newline, buffering == 1)
            text.mode = mode  # type: ignore[misc]
            return text

        return guarded


class _File(io.FileIO):
    def __init__(self, file: Any, mode: str, disk: FailingDisk):
        super().__init__(file, mode.replace("b", ""))
        self._disk = disk

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        half = lambda: super(_File, self).write(view[: len(view) // 2])  # noqa: E731
        written = self._disk.event("write", str(self.name), half)
        return super().write(content) if written is None else written
