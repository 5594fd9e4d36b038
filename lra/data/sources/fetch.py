"""Download one file over HTTP, whole and as published or not at all."""

from __future__ import annotations

import urllib.request
from http.client import HTTPException
from pathlib import Path

from lra.base.config import UserError
from lra.base.disk import disk_errors, require_space
from lra.data.parallel import track
from lra.data.store import lock, sha256

ANSWER = 10.0  # seconds within which a server must answer or send more
CHUNK = 2**20


def fetch(url: str, target: Path, *, instead: str, size: int, digest: str) -> None:
    """Download `url` to `target`, or take what lies there, if its size and SHA-256 are these.
    `instead` ends the message when it cannot be had: what else to do."""
    partial = target.with_name(f".{target.name}.partial")
    waiting = f"another process is downloading {target}; waiting for it"
    with lock(target, waiting), disk_errors(target.parent):
        if target.exists():
            _check(target, size, digest)
            return
        print(f"downloading {size / 1e6:,.0f} MB to {target.parent}", flush=True)
        require_space(target.parent, size)
        try:
            _receive(url, partial, size)
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise UserError(f"{url} cannot be reached ({reason}); {instead}") from error
        _check(partial, size, digest)
        partial.replace(target)


def _receive(url: str, file: Path, size: int) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "luna-lra"})
    with urllib.request.urlopen(request, timeout=ANSWER) as body, file.open("wb") as out:
        chunks = iter(lambda: body.read(CHUNK), b"")
        for chunk in track(chunks, f"downloading {file.stem[1:]}, MiB", round(size / CHUNK)):
            with disk_errors(file.parent):
                out.write(chunk)


def _check(file: Path, size: int, digest: str) -> None:
    wrong = ""
    if (there := file.stat().st_size) != size:
        wrong = f"{size:,} bytes expected, {there:,} found"
    elif (computed := sha256(file)) != digest:
        wrong = f"sha256 {digest} expected, {computed} found"
    if wrong:
        raise UserError(f"{file} is not the published file: {wrong}; remove it and try again")
