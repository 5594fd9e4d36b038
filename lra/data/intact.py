"""Arrays are what their manifest says when a run begins, checked in a few milliseconds.

The whole files are hashed once on every machine, and again when a file's size or time has changed.
After that a sample of each file is enough. A byte that rots later outside of the sample is found by
`lra data verify`, which always hashes everything.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from lra.base.config import UserError
from lra.base.disk import read_json, write_json
from lra.data.arrays import Prepared, remedy
from lra.data.store import read_errors, sha256

BLOCKS, BLOCK = 64, 4096  # of a sample; positions and bytes each
LARGE = 2**30  # bytes from which hashing takes long enough to be announced


def check(prepared: Prepared) -> None:
    """UserError that names the first array which is not what the manifest says."""
    memory = _memory(prepared)
    known = (read_json(memory) if memory.exists() else None) or {}
    seen: dict[str, Any] = {}
    for name, facts in prepared.facts["arrays"].items():
        path = prepared.folder / f"{name}.npy"
        with read_errors(path):
            seen[name] = [facts["sha256"], path.stat().st_mtime_ns, _sample(path, facts["bytes"])]
        if known.get(name) == seen[name]:
            continue
        if facts["bytes"] > LARGE:
            print(f"checking {path} once on this machine ({facts['bytes'] / 1e9:.1f} GB)")
        if sha256(path) != facts["sha256"]:
            raise UserError(
                f"{path} has changed since it was prepared: its content is not that of the "
                f"fingerprint {prepared.fingerprint}; {remedy(prepared.manifest)}"
            )
    if seen != known:
        with contextlib.suppress(OSError):  # without this memory the files are hashed every time
            write_json(memory, seen)


def _sample(path: Path, size: int) -> str:
    """A hash of the file's beginning, its end and some blocks between."""
    found = hashlib.sha256()
    handle = os.open(path, os.O_RDONLY)
    try:
        for start in np.linspace(0, max(0, size - BLOCK), BLOCKS).astype(int).tolist():
            found.update(os.pread(handle, BLOCK, start))
    finally:
        os.close(handle)
    return found.hexdigest()[:16]


def _memory(prepared: Prepared) -> Path:
    """The file that remembers what was checked on this machine: beside the arrays or, where nobody
    may write there, in the folder for temporary files."""
    place = json.dumps([str(prepared.folder.resolve()), platform.node()])
    name = f".checked-{hashlib.sha256(place.encode()).hexdigest()[:8]}.json"
    writable = os.access(prepared.folder, os.W_OK)
    return (prepared.folder if writable else Path(tempfile.gettempdir())) / name
