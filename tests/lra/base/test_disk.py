"""Atomic writing: a failing disk leaves the old file and nothing beside it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lra.base.disk import write_atomically


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch, call: str):
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "result.json"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
